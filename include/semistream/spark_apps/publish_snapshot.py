"""Publish the snapshots of a job's dimensions, or of one dimension:
spark-submit spark_apps/publish_snapshot.py --job tpch

Does nothing for a snapshot that is up to date. Exit codes: 0 done, 1 failed (the current
snapshot stays), 2 the settings cannot work, 130 interrupted. Environment: SEMISTREAM_HOME,
WAREHOUSE_URL.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from semistream import interrupts
from semistream.imports import leave_out_archives


def main(argv: Sequence[str] | None = None) -> int:
    interrupts.end_at_once()
    leave_out_archives("pyspark")
    from semistream.errors import ConfigError
    from semistream.paths import Paths
    from semistream.provisioning.spark import PublishSettings, publications
    from semistream.streaming.session import open_session

    parser = argparse.ArgumentParser(
        "publish_snapshot.py",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    PublishSettings.add_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        settings, paths = PublishSettings.from_arguments(arguments), Paths.from_environment()
        wanted = publications(settings, paths)
    except ConfigError as e:
        print(f"{parser.prog}: {e}", file=sys.stderr)
        return 2
    needed = [publish for publish in wanted if publish.needed]
    for publish in wanted:
        if publish not in needed:
            print(
                f"The current snapshot of {publish.name} by {', '.join(publish.key_columns)} is "
                f"{publish.dimension.table.name} as it is: nothing to publish."
            )
    if not needed:
        return 0
    with open_session(f"publish {', '.join(dict.fromkeys(p.name for p in needed))}") as spark:
        interrupts.end_at_once()  # PySpark's own handler raises an exception
        manifests = [publish.run(spark) for publish in needed]
        interrupts.ignore()
    for manifest in manifests:
        print(
            f"Published {manifest.name} {manifest.version}: {manifest.tuple_count:,} tuples in "
            f"{manifest.bucket_count} buckets, {manifest.null_keys:,} without a key left out."
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
