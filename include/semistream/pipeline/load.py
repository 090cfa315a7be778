"""A load from end to end on one machine, without Airflow: dimensions, the app, the proof."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator

from semistream import interrupts, workloads
from semistream.counted import counted
from semistream.errors import ConfigError, RefusedSetting, SemistreamError
from semistream.job import Job
from semistream.joins.registry import find_algorithm
from semistream.master.published import snapshot_root
from semistream.paths import Paths
from semistream.pipeline import drivers, steps
from semistream.pipeline.input_checks import check_inputs, check_target
from semistream.progress import Progress
from semistream.settings import Publishing
from semistream.streaming.kept_settings import check_same_job
from semistream.streaming.settings import AppSettings, LoadSettings
from semistream.streaming.status import read_status, request_stop
from semistream.streaming.summary import read_summary
from semistream.warehouse import open_warehouse
from semistream.warehouse.ledger import Ledger
from semistream.warehouse.schema import rejected_master
from semistream.workloads.jobs import dimension_file

POLL = 0.2  # s between looks at a driver
APP = (sys.executable, "-m", "semistream.streaming.script")


def load(
    settings: AppSettings, paths: Paths, progress: Progress, print_line: Callable[[str], None]
) -> str:
    """Provision a job's dimensions, load its stream, and prove what was loaded. Return what is to
    be said of a load that was to read the whole source, and was stopped before; "" otherwise.

    After an interrupt the load drains and stops, and what it has loaded is still proven.
    print_line: a function that gets the lines of the report. Raises ConfigError for settings that
    cannot work, SemistreamError for a failed load, VerificationFailed, and KeyboardInterrupt if the
    load was stopped before the app's first batch.
    """
    job = workloads.load_any_job(settings.job, paths)
    if isinstance(job, Job) and isinstance(settings, LoadSettings):
        if not settings.auto:
            find_algorithm(settings.algorithm).parameters.load(settings.parameters)
        job = settings.applied(job)
        for role in job.roles:
            role.check_late(settings.join_type)
    with open_warehouse(paths.warehouse_url) as engine:
        check_same_job(
            Ledger(engine, settings.name()), job, settings.sink, settings.directory(paths)
        )
        if not isinstance(job, Job):
            check_target(job, settings.sink, engine)
    if isinstance(job, Job):
        memory = int(Publishing.load({}).memory)
        for line in provision(
            settings.job, paths, progress, memory=memory, job=job, sink=settings.sink
        ):
            print_line(line)
    else:
        workloads.prepare_target(settings.job, paths, progress)
    stopped = False
    if isinstance(settings, LoadSettings) and steps.load_without_spark(settings, paths):
        print_line(f"{settings.name()}: nothing new to load")
    else:
        _run(settings, paths, progress, print_line)
        if settings.name() not in steps.loaded_apps(paths):
            print_line(f"{settings.name()} was stopped before its first batch: nothing is loaded.")
            raise KeyboardInterrupt
        stopped = read_summary(settings.directory(paths)).stopped
    progress("proof", 0, None)
    result = steps.verify(settings.name(), paths, since_last=True, sample=1000)
    left = result["unfinished"] or "it is not known whether all of the source was read"
    return f"{left}. The same command goes on where it was" if stopped else ""


def _run(
    settings: AppSettings, paths: Paths, progress: Progress, print_line: Callable[[str], None]
) -> None:
    """Run the app until it ends, or until an interrupt. Raises SemistreamError if it fails,
    ConfigError if it refuses a setting."""
    checkpoint = settings.directory(paths)
    with drivers.launching(checkpoint):
        if drivers.is_alive(checkpoint):
            raise ConfigError(
                "app",
                "must not be running already",
                settings.name(),
                f"See `semistream status {settings.name()}`, or stop it: "
                f"semistream stop {settings.name()}.",
            )
        app = ["--app", settings.app] if settings.app else []
        owner = f"{drivers.CONSOLE} {shlex.join([settings.job, *app])}, {time.time_ns()}"
        drivers.launch([*APP, *settings.to_arguments()], checkpoint, owner, {})
    try:
        _follow(settings, paths, progress)
    except KeyboardInterrupt:
        interrupts.raise_from_now_on()
        print_line(
            f"Stopping {settings.name()}: what waits is finished, and what is loaded is proven."
        )
        request_stop(checkpoint)
        _follow(settings, paths, progress)
    _, why = drivers.ending(checkpoint) or ("", "")
    if why:
        if refused := drivers.refusal(checkpoint, why):
            raise RefusedSetting(refused)
        first, *_ = why.splitlines()  # Spark's stack traces follow
        raise SemistreamError(
            f"{settings.name()} {first}\nStarted again, it goes on where it was. Log: "
            f"{checkpoint / 'driver.log'}"
        )


def _follow(settings: AppSettings, paths: Paths, progress: Progress) -> None:
    """Report the progress of a launched driver until it has ended."""
    checkpoint = settings.directory(paths)
    while drivers.ending(checkpoint) is None:
        status = read_status(checkpoint)
        progress(f"{settings.name()}: rows read", status.rows_read if status else 0, None)
        time.sleep(POLL)


def provision(
    target: str,
    paths: Paths,
    progress: Progress,
    *,
    memory: int,
    url: str | None = None,
    job: Job | None = None,
    sink: str = "",
) -> Iterator[str]:
    """Provision the dimensions of a job, or a single dimension: load their rows into tables, and
    publish snapshots of these. Yield a report, line by line: the line about a dimension comes when
    the dimension is provisioned, because a later one may fail.

    target: the name of the job or the dimension; memory: bytes that publishing may use; url:
    database of the dimensions' tables, None for the warehouse; job: the job that the target names,
    if it reads another stream than its file says; sink: where facts will go, by default as the job
    says. Raises ConfigError, before anything is written, for a job whose stream cannot be read or
    does not fit its dimensions, or whose fact table is another table of the warehouse.
    """
    from semistream.provisioning import dimensions, publishing

    wanted = workloads.load_dimensions(target, paths)
    wanted_job = job
    if job is None and dimension_file(target, paths) is None:
        wanted_job = workloads.load_job(target, paths)
    with open_warehouse(paths.warehouse_url) as engine:
        if wanted_job is not None:
            sink = sink or wanted_job.settings.get("sink", "sql")
            check_target(wanted_job, sink, engine)
        workloads.prepare_target(target, paths, progress)
        if wanted_job is not None:
            yield from check_inputs(
                wanted_job, wanted, engine, url, loads=job is not None, sink=sink
            )
        for joined in wanted:
            name = joined.dimension.name
            result = dimensions.provision(joined, engine, progress, url=url)
            reasons = ", ".join(f"{reason} {n:,}" for reason, n in result.reasons.items())
            yield (
                f"dim_{name}: read {result.read:,}, inserted {result.inserted:,}, updated "
                f"{result.updated:,}, unchanged {result.unchanged:,}, rejected "
                f"{result.rejected:,}{f' ({reasons})' if reasons else ''}"
            )
            if result.duplicates:
                yield (
                    f"Of rows with the same {', '.join(joined.dimension.business_key)} the last is "
                    f"taken, for instance of {', '.join(map(repr, result.duplicates))}. The others "
                    f"are in the table {rejected_master.name}."
                )
            if result.absent:
                yield (
                    f"{result.absent:,} rows of dim_{name} are not in its source any more. They "
                    "stay, and tuples match them."
                )
            for key in joined.keys:
                manifest, changed = publishing.publish(
                    name, key, engine, paths.snapshots, progress, memory=memory
                )
                yield (
                    f"snapshot {manifest.version}{'' if changed else ', as before'}: "
                    f"{counted(manifest.tuple_count, 'row')}, in "
                    f"{snapshot_root(paths.snapshots, name, key)}"
                )
            if not joined.keys:
                yield f"No job joins {name} yet: semistream provision JOB publishes it."
