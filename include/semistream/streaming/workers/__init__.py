"""What lives in Spark's Python workers from one task to the next."""
