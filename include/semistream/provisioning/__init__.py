"""Master data into dimension tables, and from there into snapshots; in process or by Spark."""
