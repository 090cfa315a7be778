"""Master data loaded into dimension tables, and published from there as snapshots, in process or by
Spark."""
