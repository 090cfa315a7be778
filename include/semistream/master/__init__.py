"""Master data: the relation R with which a stream is joined."""
