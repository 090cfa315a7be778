"""Benchmarks: all peers on the same machine, files and tuples, in one run, every answer checked:
``python -m benchmarks``."""
