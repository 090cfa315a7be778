"""The sources of streams: one file a system."""
