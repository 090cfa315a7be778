"""The sinks of joined rows, one module for each system. Each sink loads a batch exactly once."""
