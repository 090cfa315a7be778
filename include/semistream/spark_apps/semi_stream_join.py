"""Load a warehouse from a stream joined with master data:
spark-submit spark_apps/semi_stream_join.py --job tpch

Exit codes: 0 done, or drained and stopped; 1 failed, start it again to continue; 2 the settings
cannot work. Environment: SEMISTREAM_HOME, WAREHOUSE_URL. Ctrl-C drains and stops the app. So does
SIGTERM to spark-submit, to the driver's Python process (its pid is in <checkpoint>/status.json) or
to their process group, and so does a file <checkpoint>/stop. Until the settings are read, both end
the app with exit code 130.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from semistream import interrupts
from semistream.imports import leave_out_archives


def main(argv: Sequence[str] | None = None) -> int:
    interrupts.end_at_once()
    leave_out_archives("pyspark")
    from semistream.streaming.script import run_app
    from semistream.streaming.settings import LoadSettings
    from semistream.workloads import load_job

    return run_app("semi_stream_join.py", __doc__, LoadSettings, load_job, argv)


if __name__ == "__main__":
    sys.exit(main())
