"""``semistream schema``."""

from __future__ import annotations

from argparse import Namespace

from semistream.cli.command import Command


def run(_: Namespace) -> int:
    from semistream.pipeline.job_schema import job_schema

    print(job_schema(), end="")
    return 0


COMMAND = Command(
    "schema",
    "print the JSON schema of a job's file, for editors and for validation",
    run,
    example="semistream schema > job.schema.json, and in the job's file "
    "# yaml-language-server: $schema=job.schema.json.",
    files_only=True,
)
