"""Pathway's join of a stream's CSV files with R in a CSV file, into a CSV file. The program runs in
the Python that has Pathway, and prints the seconds that the join took.

Pathway's reader does not read Parquet, and a column cannot have the name id.
"""

import sys
import time

import pathway as pw

STREAM, MASTER, OUTPUT = sys.argv[1:4]
PAYLOAD = sys.argv[4].split(",")

S = pw.schema_from_types(key=int, number=int, quantity=int)
R = pw.schema_builder(
    {"key": pw.column_definition(dtype=int, primary_key=True)}
    | {name: pw.column_definition(dtype=int) for name in PAYLOAD}
)

s = pw.io.csv.read(STREAM, schema=S, mode="static")
r = pw.io.csv.read(MASTER, schema=R, mode="static")
joined = s.join(r, s.key == r.key).select(
    s.key, s.number, s.quantity, **{name: r[name] for name in PAYLOAD}
)
pw.io.csv.write(joined, OUTPUT)
start = time.monotonic()
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
print("seconds", time.monotonic() - start, flush=True)
