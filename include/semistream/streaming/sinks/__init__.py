"""Where joined rows go: one file a system. Each makes a batch count exactly once."""
