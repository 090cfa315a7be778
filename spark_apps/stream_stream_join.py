"""Load a warehouse from two streams joined with each other: spark-submit
spark_apps/stream_stream_join.py --job orders.yaml

Exit codes: 0 done or stopped, drained; 1 failed, start it again to go on; 2 the settings cannot
work. Environment: SEMISTREAM_HOME, WAREHOUSE_URL. SIGTERM to spark-submit, to the driver's Python
process (its pid is in <checkpoint>/status.json) or to their process group drains and stops, as does
a file <checkpoint>/stop.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from semistream.config import Places
from semistream.errors import ConfigError
from semistream.streaming.session import start_session
from semistream.streaming.settings import StreamStreamSettings
from semistream.streaming.status import StatusFile, checkpoint_lock
from semistream.workloads import load_stream_stream_job


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("stream_stream_join.py", description=__doc__,
                                     allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    StreamStreamSettings.add_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        settings = StreamStreamSettings.from_arguments(arguments)
        places = Places.from_environment()
        with checkpoint_lock(settings.directory(places)), StatusFile(
            settings.directory(places), settings.name()) as status:
            job = load_stream_stream_job(settings.job, places)
            # while what the app needs is imported, and the settings are checked
            session = start_session(settings.name())
            from semistream.streaming.app import Load
            from semistream.streaming.summary import describe

            load = Load(settings, job, places, status)
            with load.signals():
                load.check()
                with session() as spark:
                    print(describe(load.run(spark)))
        return 0
    except ConfigError as e:
        print(f"{parser.prog}: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
