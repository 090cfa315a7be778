"""A check of a job before its load: types, keys, match rates, and the prediction of the cost
models. It reads the job's files without Spark and writes only temporary files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Engine, inspect

from semistream import workloads
from semistream.column_format import key_forms
from semistream.counted import counted
from semistream.data_files import ENDINGS
from semistream.ddl import parse_ddl
from semistream.errors import ConfigError, SemistreamError
from semistream.files.column_facts import column_facts
from semistream.files.convert import readable
from semistream.files.detection import header_note, kind_of, sampled
from semistream.files.near_misses import is_suspicious, near_misses
from semistream.gathering import as_batch
from semistream.job import SIDES, AnyJob, Job, Role, StreamSpec, StreamStreamJob
from semistream.keys import key_text, master_keys, resolve_keys
from semistream.master.publish import current_manifest, publish_snapshot
from semistream.master.published import snapshot_root
from semistream.master.snapshot import open_snapshot
from semistream.paths import Paths
from semistream.pipeline.check_result import JobCheck, RoleFacts, StreamFacts
from semistream.pipeline.input_checks import (
    check_facts,
    check_target,
    problems,
    provisioned_schema,
    stream_schema,
)
from semistream.pipeline.load_prediction import predict_load
from semistream.pipeline.settings import CheckSettings
from semistream.pipeline.warehouse_check import check_loaded_files, note_decimals, open_existing
from semistream.progress import Progress
from semistream.provisioning.dimensions import check_declaration, check_unknown_allowed, stored_rows
from semistream.provisioning.master_rows import open_rows, replaced_rows
from semistream.scheduling import check_scheduling
from semistream.scratch import scratch_directory
from semistream.sizing.choice import known_costs
from semistream.sizing.initial_plan import partitions_of
from semistream.streaming.kept_settings import check_same_job, check_same_types
from semistream.streaming.replaying import has_header
from semistream.streaming.settings import StreamStreamSettings, load_with_settings
from semistream.streaming.sources.file_reader import find_reader, is_local, listed
from semistream.streaming.sources.file_streams import is_tuple
from semistream.streaming.stream_schemas import former_schema
from semistream.streaming.stream_stream_planning import StreamStreamPlanner
from semistream.tuning.tuning_input import stream_sample
from semistream.warehouse import shared_engine
from semistream.warehouse.dialects import may_exist
from semistream.warehouse.ledger import Ledger
from semistream.warehouse.schema import load_commits
from semistream.warehouse.tables import dimension_name, dimension_table, existing_table
from semistream.workloads.jobs import JoinedDimension

SAMPLE_BYTES = 256_000_000  # the most bytes of the stream's rows that are held
HEAD = 10_000  # rows of a dimension whose columns are described
EXAMPLES = 3  # keys and rows that are shown as examples


def check_job(settings: CheckSettings, paths: Paths, progress: Progress) -> JobCheck:
    """Check a job. Errors in the job become findings of the result, and are not raised."""
    found = JobCheck(settings.job)
    try:
        job, of_job = load_with_settings(settings.job, paths)
        check_scheduling(job)
        settings = _of_load(settings, of_job)
    except ConfigError as e:
        for error in e.errors:
            found.add("error", "job", str(error))
        return found
    found.job, found.memory = job.name, int(settings.memory)
    found.sink, found.fact_table = settings.sink, job.fact_table
    found.divide(settings.partitions or _cores())
    _Check(settings, job, paths, found, progress).run()
    return found


def _of_load(given: CheckSettings, of_job: Mapping[str, Any]) -> CheckSettings:
    """Return the settings of a check, where those of the job's load are the defaults. A longest
    wait is predicted only for a rate, which only a check has."""
    known = {
        "app",
        "sink",
        "memory",
        "partitions",
        "join_type",
        *(("max_wait",) if given.rate else ()),
    }
    defaults = {name: value for name, value in of_job.items() if name in known}
    return CheckSettings.load(
        defaults | {name: getattr(given, name) for name in given.model_fields_set}
    )


@dataclass
class _Check:
    """The check of a job. samples: rows of the streams that could be read; snapshots: by dimension
    and key, temporary snapshots of the rows that were read; stored: by dimension, the rows of its
    table that have come from its source."""

    settings: CheckSettings
    job: AnyJob
    paths: Paths
    found: JobCheck
    progress: Progress
    samples: list[pa.RecordBatch] = field(default_factory=list)
    schemas: dict[str, pa.Schema] = field(default_factory=dict)
    snapshots: dict[tuple[str, tuple[str, ...]], Path] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        try:
            engine = open_existing(self.paths.warehouse_url, self.found)
        except ConfigError as e:
            self.found.add("error", "job", str(e))
            return
        try:
            self._run(engine)
        finally:
            if engine is not None:
                engine.dispose()

    def _run(self, engine: Engine | None) -> None:
        known = list[pa.Schema | None]()
        for side, (name, spec) in enumerate(
            zip(self.job.stream_names, self.job.streams, strict=True)
        ):
            self.progress(f"reading the {name}", 0, None)
            try:
                known.append(stream_schema(spec, former_schema(self._checkpoint, side)))
                self._stream(name, spec)
            except SemistreamError as e:
                self.found.add("error", name, str(e))
        self._in_warehouse(known, engine)
        schemas = [schema for schema in known if schema is not None]
        if self.settings.sink == "sql":
            note_decimals(self.paths.warehouse_url, schemas, self.found)
        if not isinstance(self.job, Job):
            if len(schemas) == len(self.job.streams):
                self._two_streams(self.job, *schemas)
            return
        for role in self.job.roles:
            try:
                role.check_late(self.settings.join_type)
            except ConfigError as e:
                self.found.add("error", "job", str(e))
        for joined in workloads.load_dimensions(self.settings.job, self.paths):
            self._dimension(joined)
        for error in problems(self.job, known[0] if known else None, self.schemas):
            self.found.add("error", "job", str(error))
        if self.found.ok and known and known[0] is not None:
            try:
                check_facts(self.job, self.settings.sink, engine, known[0], self.schemas)
            except ConfigError as e:
                self.found.add("error", "job", str(e))
        if self.found.ok and self.samples and self.samples[0].num_rows:
            self._predict(self.job, self.samples[0])

    def _in_warehouse(self, known: Sequence[pa.Schema | None], engine: Engine | None) -> None:
        """Check what is in the warehouse already, if there is one. known: the streams' schemas."""
        for check in (self._tables, partial(self._loaded_before, known)):
            try:
                check(engine)
            except SemistreamError as e:
                self.found.add("error", "job", str(e))

    def _tables(self, engine: Engine | None) -> None:
        """Check that the warehouse can have the job's tables: its fact table, and its dimensions as
        they are declared."""
        check_target(self.job, self.settings.sink, engine)
        if engine is not None and isinstance(self.job, Job):
            for joined in workloads.load_dimensions(self.settings.job, self.paths):
                dimension = joined.dimension
                check_declaration(joined, provisioned_schema(engine, dimension.name))
                if not inspect(engine).has_table(table := dimension_name(dimension.name)):
                    continue
                if dimension.unknown_member:
                    check_unknown_allowed(engine, dimension.name)
                with engine.connect() as connection:
                    self.stored[dimension.name] = stored_rows(
                        connection, existing_table(connection, table), dimension.name
                    )

    def _loaded_before(self, known: Sequence[pa.Schema | None], engine: Engine | None) -> None:
        """Check that what must stay is as in the former loads of the app."""
        app = self.settings.app or self.job.name
        if engine is not None and inspect(engine).has_table(load_commits.name):
            check_same_job(Ledger(engine, app), self.job, self.settings.sink, self._checkpoint)
            check_loaded_files(engine, app, self.job, self.found)
        if len(known) == len(self.job.streams):
            check_same_types(app, self.job, self._checkpoint, known)

    def _predict(self, job: Job, sample: pa.RecordBatch) -> None:
        self.progress("predicting", 0, None)
        costs = known_costs(self.paths.home)
        self.found.costs = costs.machine + ("" if costs.measured else ", which only compare")
        versions = [self.snapshots[role.dimension.name, role.key] for role in job.roles]
        self.found.divide(partitions_of(versions, self.settings.partitions, _cores()))
        try:
            self.found.predictions.extend(
                predict_load(self.settings, job, versions, sample, self.found.partitions, costs)
            )
        except ConfigError as e:
            self.found.add("error", "job", str(e))

    @property
    def _checkpoint(self) -> Path:
        name = self.settings.app or self.job.name
        return Path(self.job.settings.get("checkpoint", self.paths.checkpoints / name)).absolute()

    # ---- streams

    def _two_streams(self, job: StreamStreamJob, left: pa.Schema, right: pa.Schema) -> None:
        """Check the join columns, and say which shares of the samples have a partner."""
        on, sides = list(job.on.items()), ("left stream", "right stream")
        given = {"job": self.settings.job, "memory": self.settings.memory}
        asked = StreamStreamSettings.load(given | {"partitions": self.settings.partitions})
        try:
            StreamStreamPlanner(asked, job).check((left, right))
        except ConfigError as e:
            self.found.add("error", "job", str(e))
            return
        if len(self.samples) < len(sides) or not all(s.num_rows for s in self.samples):
            self.found.add(
                "note",
                "job",
                "which tuples have a partner is not looked at: that takes rows of both streams",
            )
            return
        rows = self.samples
        keys = resolve_keys(rows[0].schema, rows[1].schema, on, sides=sides)
        found = keys.stream_codes(rows[0]), keys.master_codes(rows[1])
        for side, (codes, valid), (others, there) in zip(SIDES, found, found[::-1], strict=True):
            share = float((valid & np.isin(codes, others[there])).mean())
            self.found.add(
                "note" if share else "warning",
                side,
                f"{share:.1%} of the {len(codes):,} tuples looked at have a partner among "
                f"{len(others):,} of the other stream",
            )

    def _stream(self, name: str, spec: StreamSpec) -> None:
        """Read some rows of a stream, and describe them."""
        if spec.format == "zipf":
            rows = stream_sample(spec, self.settings.rows)
            self.samples.append(as_batch(rows))
            facts = StreamFacts(
                name, spec.format, None, rows=rows.num_rows, columns=column_facts(rows)
            )
            self.found.streams.append(facts)
            return
        if spec.format not in ENDINGS or not is_local(spec):
            self.found.streams.append(StreamFacts(name, spec.format, spec.path))
            self.found.add(
                "note",
                name,
                f"its tuples are not looked at, as only local files of {', '.join(ENDINGS)} are: "
                "their types, ids and match rates are seen when they are loaded",
            )
            return
        try:
            files = listed(spec)
        except ConfigError as e:
            if spec.columns:
                self.found.streams.append(StreamFacts(name, spec.format, spec.path))
                self.found.add("warning", name, f"no file is there yet. {e}")
                return
            raise
        reader = find_reader(spec)
        try:
            # a sample of the files; the load itself refuses any that has other columns
            source = reader.open(files)
            sample = sampled(source, self.settings.rows, SAMPLE_BYTES)
        except ConfigError as e:
            raise ConfigError("stream.path", e.constraint, e.value, e.remedy) from None
        rows, mark = sample.rows.combine_chunks(), spec.mark
        if mark is not None and mark in rows.schema.names:
            rows = rows.filter(is_tuple(rows.column(mark))).combine_chunks()
        read = rows.num_rows + len(sample.rejected)
        self.samples.append(as_batch(rows))
        if has_header(spec.format, spec.all_options()):
            self._header(name, rows.schema)
        duplicates = self._ids(name, spec, rows)
        self.found.streams.append(
            StreamFacts(
                name,
                spec.format,
                spec.path,
                len(files),
                sum(file.stat().st_size for file in files),
                sample.read,
                sample.about,
                len(sample.rejected),
                duplicates,
                column_facts(rows, sample.rejected),
                sample.read - read,
            )
        )
        if not sample.read:
            self.found.add("warning", name, "its files have no row")
        if lost := sample.rejected:
            self.found.judge(
                len(lost) > spec.max_unparsable * read,
                name,
                f"{len(lost):,} of {read:,} rows cannot be read, the first: "
                f"{lost[0].place}: {lost[0].detail}",
                f"the proof fails above max_unparsable, {spec.max_unparsable:g}",
            )

    def _header(self, name: str, schema: pa.Schema) -> None:
        if said := header_note(schema.names):
            self.found.add("warning", name, said)

    def _ids(self, name: str, spec: StreamSpec, rows: pa.Table) -> int:
        """Return how many tuples have the id of another tuple. Problems with ids become
        findings."""
        if not spec.id:
            self.found.add(
                "warning",
                name,
                "no id: the proof counts the tuples, and cannot name one that is missing or twice",
            )
        if not spec.id or not set(spec.id) <= set(rows.schema.names) or not rows.num_rows:
            return 0
        # columns that are no keys, as doubles, may be part of an id
        ids = rows.select(list(spec.id)).drop_null()
        if nameless := rows.num_rows - ids.num_rows:
            self.found.add(
                "warning",
                name,
                f"{nameless:,} of {rows.num_rows:,} tuples have no id ({', '.join(spec.id)}): the "
                "proof counts them, and cannot name one that is missing",
            )
        duplicates = ids.num_rows - ids.group_by(list(spec.id)).aggregate([]).num_rows
        if duplicates:
            self.found.judge(
                spec.unique_ids,
                name,
                f"{duplicates:,} of {rows.num_rows:,} tuples have the id of another one "
                f"({', '.join(spec.id)})",
                "the proof fails, unless unique_ids is false",
            )
        return duplicates

    # ---- dimensions

    def _dimension(self, joined: JoinedDimension) -> None:
        """Read the rows of a dimension once for each key, and describe it in each of its roles."""
        dimension, read = joined.dimension, _Read()
        self.progress(f"reading {dimension.name}", 0, None)
        try:
            rows = self._open(joined)
            self.schemas[dimension.name] = rows.schema
            if dimension.path and kind_of(Path(dimension.path), "master") == "csv":
                self._header(dimension.name, rows.schema)
            dimension_table(
                dimension.name,
                rows.schema,
                dimension.business_key,
                joined.keys,
                unknown_member=dimension.unknown_member,
                inferred=any(role.late == "infer" for role in joined.roles),
            )
            for key in dict.fromkeys(role.key for role in joined.roles):
                read = _Read()
                self._publish(joined, key, read)
        except SemistreamError as e:
            self.found.add("error", dimension.name, str(e))
            return
        rejected = len(read.rejected)
        if rejected:
            self.found.judge(
                rejected > dimension.max_rejected * read.rows,
                dimension.name,
                f"{rejected:,} of {read.rows:,} rows cannot be taken, the first: "
                f"{read.rejected[0]}",
                f"nothing is provisioned above max_rejected, {dimension.max_rejected:g}",
            )
        if rejected == read.rows and not dimension.allow_empty:
            self.found.add("error", dimension.name, "it has no row: no tuple would match")
        if read.duplicates:
            keys = ", ".join(map(repr, self._duplicate_keys(joined, read)))
            self.found.add(
                "warning",
                dimension.name,
                f"{counted(read.duplicates, 'row')} "
                f"{'has' if read.duplicates == 1 else 'have'} the business key of another one "
                f"({', '.join(dimension.business_key)}), for instance {keys}: the last one is "
                "taken",
            )
        came = read.rows - rejected - read.duplicates
        if read.whole and (stored := self.stored.get(dimension.name, 0)) > came:
            self.found.add(
                "warning",
                dimension.name,
                f"at least {stored - came:,} of the {stored:,} rows of "
                f"{dimension_name(dimension.name)} are not in its source any more, which has "
                f"{came:,}: they stay, and tuples match them",
            )
        if not read.whole:
            self.found.add(
                "warning",
                dimension.name,
                f"{read.rows:,} of its rows were read: match rates are at least those told, and "
                "predictions are of so many (master_rows)",
            )
        for role in joined.roles:
            facts = RoleFacts(
                role.name,
                dimension.name,
                str(dimension.path or dimension.table),
                role.on,
                read.rows,
                read.whole,
                rejected,
                read.duplicates,
                columns=column_facts(
                    pa.Table.from_batches(read.head, self.schemas[dimension.name])
                ),
            )
            self.found.roles.append(self._matched(role, facts))

    def _open(self, joined: JoinedDimension) -> Any:
        dimension, engine = joined.dimension, None
        if dimension.table is not None:
            if not may_exist(self.paths.warehouse_url):
                raise ConfigError(
                    "table",
                    "must be in a warehouse that exists",
                    dimension.table,
                    f"{self.paths.warehouse_url} is not there yet.",
                )
            engine = shared_engine(self.paths.warehouse_url)
        known = parse_ddl(dimension.columns) if dimension.columns else None
        for key in joined.keys:
            root = snapshot_root(self.paths.snapshots, dimension.name, key)
            if (former := current_manifest(root)) is not None:
                fields = [f for f in former.schema if f.name != dimension.surrogate_key]
                known = pa.schema(fields)
        return open_rows(dimension, joined.key_columns, engine, None, known)

    def _duplicate_keys(self, joined: JoinedDimension, read: _Read) -> list[str]:
        """Return the first business keys that several rows have. Read the rows once more."""
        keys, rows, found = joined.dimension.business_key, self._open(joined), dict[str, None]()
        batches = (batch for batch, _ in rows.batches)
        for batch in replaced_rows(master_keys(rows.schema, list(keys)), read.codes, batches):
            found |= dict.fromkeys(key_text(batch, keys, i) for i in range(batch.num_rows))
            if len(found) >= EXAMPLES:
                break
        return list(found)[:EXAMPLES]

    def _publish(self, joined: JoinedDimension, key: tuple[str, ...], read: _Read) -> None:
        """Write rows of a dimension into a temporary snapshot by a key. Add the statistics of these
        rows to ``read``."""
        dimension, rows = joined.dimension, self._open(joined)
        name, root = dimension.name, scratch_directory()
        identity = master_keys(rows.schema, list(dimension.business_key))

        def batches() -> Iterator[pa.RecordBatch]:
            for batch, rejected in rows.batches:
                read.add(batch, [r.detail for r in rejected], *identity.master_codes(batch))
                yield batch
                if read.rows >= self.settings.master_rows:
                    read.whole = False
                    return

        forms = key_forms(key, dimension.formats)
        manifest = publish_snapshot(
            batches(), rows.schema, root, name, key, flush=False, formats=forms
        )
        self.snapshots[name, key] = root / manifest.version

    def _matched(self, role: Role, facts: RoleFacts) -> RoleFacts:
        """Return a role's facts, completed with the share of the sample's tuples that have a
        row."""
        if not self.samples or not self.samples[0].num_rows:
            return facts
        sample = self.samples[0]
        with closing(open_snapshot(self.snapshots[role.dimension.name, role.key].parent)) as r:
            try:
                keys = resolve_keys(sample.schema, r.schema, list(role.on.items()))
            except ConfigError:  # reported by ``problems``
                return facts
            codes, valid = keys.stream_codes(sample)
            parts = [r.read_codes(p) for p in range(r.partition_count)]
            there = np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
            match = valid & np.isin(codes, there)
            lost = sample.select(list(role.on)).filter(pa.array(valid & ~match))
            near = None
            if is_suspicious(int(match.sum()), lost.num_rows):
                near = near_misses(lost, r)
        share, without = float(match.mean()), 1 - float(match.mean())
        facts = replace(
            facts,
            matched=share,
            null_keys=1 - float(valid.mean()),
            unmatched=_frequent(lost),
            near_misses=str(near or ""),
            declaration=near.declaration if near else "",
        )
        if near:
            self.found.add("warning", role.name, f"{near}: formats: {near.declaration}")
        if without > role.max_unmatched:
            # what the proof counts at once: a tuple without a key has no grace
            counted = facts.null_keys or 0.0 if self._has_grace(role) else without
            fails = counted > role.max_unmatched
            self.found.add(
                "error" if fails and facts.whole else "warning",
                role.name,
                f"{without:.1%} of the tuples have no row, for instance "
                f"{', '.join(facts.unmatched) or 'without a key'}; the proof fails above "
                f"max_unmatched, {role.max_unmatched:g}"
                + ("" if fails else f", when their grace of {role.grace} has ended"),
            )
        return facts

    def _has_grace(self, role: Role) -> bool:
        """Return whether the proof leaves out a role's tuples that may still get a row. Those of a
        left join of several roles are facts for good, unless their members are inferred."""
        left = (role.join_type or self.settings.join_type) == "left"
        several = isinstance(self.job, Job) and len(self.job.roles) > 1
        final = left and several and role.late != "infer"
        return role.grace is not None and not final


@dataclass
class _Read:
    """Statistics of the rows of a dimension that were read."""

    rows: int = 0
    rejected: list[str] = field(default_factory=list)
    head: list[pa.RecordBatch] = field(default_factory=list)
    whole: bool = True
    codes: list[np.ndarray] = field(default_factory=list)

    def add(
        self, batch: pa.RecordBatch, rejected: Sequence[str], codes: np.ndarray, valid: np.ndarray
    ) -> None:
        self.rows += batch.num_rows + len(rejected)
        self.rejected += rejected
        left = HEAD - sum(part.num_rows for part in self.head)
        if left > 0:
            self.head.append(batch.slice(0, left))
        self.codes.append(codes[valid])
        self.rejected += ["a business key is null"] * int((~valid).sum())

    @property
    def duplicates(self) -> int:
        if not self.codes:
            return 0
        codes = np.concatenate(self.codes)
        return len(codes) - len(np.unique(codes))


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _frequent(keys: pa.RecordBatch) -> tuple[str, ...]:
    """Return the most frequent keys, as texts."""
    columns = [pc.fill_null(readable(column), "") for column in keys.columns]
    texts = columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, ", ")
    return tuple(repr(key) for key, _ in Counter(texts.to_pylist()).most_common(EXAMPLES))
