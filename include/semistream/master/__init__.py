"""Master data: the relation R that a stream is joined with."""
