"""Publish a job's dimension table as a master snapshot:
spark-submit spark_apps/publish_snapshot.py --job tpch

Does nothing if the current snapshot is up to date. Exit codes: 0 done, 1 failed (the current
snapshot stays), 2 the settings cannot work, 130 interrupted. Environment: SEMISTREAM_HOME,
WAREHOUSE_URL.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from semistream import interrupts


def main(argv: Sequence[str] | None = None) -> int:
    interrupts.end_at_once()
    from semistream.errors import ConfigError
    from semistream.paths import Paths
    from semistream.provisioning.spark import Publish, PublishSettings
    from semistream.streaming.session import open_session
    from semistream.workloads import load_job

    parser = argparse.ArgumentParser("publish_snapshot.py", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    PublishSettings.add_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        settings, places = PublishSettings.from_arguments(arguments), Paths.from_environment()
        publish = Publish(settings, load_job(settings.job, places), places)
    except ConfigError as e:
        print(f"{parser.prog}: {e}", file=sys.stderr)
        return 2
    if not publish.needed:
        print(f"The current snapshot of {publish.name} is {publish.dimension.table.name} as it is: "
              f"nothing to publish.")
        return 0
    with open_session(f"publish {publish.name}") as spark:
        interrupts.end_at_once()  # PySpark has a handler of its own, which raises
        manifest = publish.run(spark)
        interrupts.ignore()
    print(f"Published {manifest.name} {manifest.version}: {manifest.tuple_count:,} tuples in "
          f"{manifest.bucket_count} buckets, {manifest.null_keys:,} without a key left out.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
