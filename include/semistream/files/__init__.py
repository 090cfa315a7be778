"""Data files as streams of Arrow batches, in and out, and the join of files. Memory is bounded, and
malformed rows are set apart."""
