"""Load a warehouse from a stream, enriched with master data, in bounded memory."""
