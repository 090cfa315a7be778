"""Benchmarks: all peers on the same machine, files and tuples, in one run, with every answer
checked: ``python -m benchmarks``."""
