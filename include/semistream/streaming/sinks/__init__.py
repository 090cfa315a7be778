"""The sinks of joined rows: one file a system. Each loads a batch exactly once."""
