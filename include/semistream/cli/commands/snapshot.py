"""``semistream snapshot``."""

from __future__ import annotations

from argparse import Namespace

from semistream.cli import console
from semistream.cli.command import Command
from semistream.counted import counted


def run(arguments: Namespace) -> int:
    from semistream.files.master_file import publish_file
    from semistream.files.opening import open_source

    settings = arguments.settings
    source = open_source(
        "master",
        settings.master,
        types=settings.types,
        null_values=settings.null_values,
        delimiter=settings.delimiter,
        formats=settings.formats,
    )
    source.assign_types()
    with console.progress(arguments.progress) as tell:
        manifest, rejected = publish_file(
            settings.master,
            list(settings.on),
            settings.out,
            source,
            tell,
            settings.name,
            int(settings.memory),
            allow_empty=settings.allow_empty,
        )
    left_out = "".join(f", {n:,} left out ({reason})" for reason, n in rejected.items())
    for note in source.notes:
        print(f"note: {note}")
    print(
        f"{manifest.name} {manifest.version}: {counted(manifest.tuple_count, 'row')}{left_out}, "
        f"{'unique keys' if manifest.unique else 'keys with several rows'}, in {settings.out}"
    )
    return 0


COMMAND = Command(
    "snapshot",
    "publish a master file as a snapshot, for joins to come",
    run,
    settings="semistream.files.settings.MasterFile",
    progress=True,
    example="semistream snapshot --master planes.csv --on tailnum --out snapshots/planes",
    files_only=True,
    without_pandas=True,
)
