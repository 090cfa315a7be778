"""Where the stream comes from: one file a system."""
