"""Loading of jobs by name or by YAML file. DAG files import this module, so that it needs no
Arrow."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from semistream.data_files import is_remote
from semistream.errors import ConfigError
from semistream.expect import check_given
from semistream.job import (
    AnyJob,
    Dimension,
    Job,
    Role,
    StreamSpec,
    StreamStreamJob,
    as_given,
    check_same,
    job_of,
    with_roles,
)
from semistream.master.published import same_key, snapshot_roots
from semistream.paths import Paths, one_name, without_dots
from semistream.settings import read_yaml

SHIPPED = (*Job.shipped, *StreamStreamJob.shipped)
# names of jobs and apps, after which checkpoints are named
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,189}")
# settings of which a job's file has some, though one is mistyped, and a dimension's file none
OF_JOBS = {"stream", "left", "right", "master", "dimensions", "on", "fact_table"}
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


def load_job(name: str | Path, paths: Paths | None = None) -> Job:
    """Load a job of one stream: a shipped job by its name, or a user's job by the path of its YAML
    file.

    Relative paths of a shipped job are below ``paths.data``. Relative paths of a user's job are
    also below ``paths.data`` if they exist there, otherwise below the directory of the YAML file.
    Raises ConfigError for an unknown name or a wrong file.
    """
    job = load_any_job(name, paths)
    if isinstance(job, StreamStreamJob):
        raise ConfigError(
            "job",
            "must be of one stream and master data",
            str(name),
            "Load a job of two streams by spark_apps/stream_stream_join.py, or the "
            "DAG stream_stream_load.",
        )
    return job


def load_stream_stream_job(name: str | Path, paths: Paths | None = None) -> StreamStreamJob:
    """Load a job of two streams, in the same way as ``load_job``."""
    job = load_any_job(name, paths)
    if isinstance(job, Job):
        raise ConfigError(
            "job",
            "must have the streams left and right",
            str(name),
            "Load a job of one stream by spark_apps/semi_stream_join.py, or the DAG "
            "semi_stream_load.",
        )
    return job


def load_any_job(name: str | Path, paths: Paths | None = None) -> AnyJob:
    """Load a job of one stream or of two streams, in the same way as ``load_job``."""
    paths = paths or Paths.from_environment()
    path = job_file(name, paths)
    if not path.exists():
        named = ", ".join((*SHIPPED, *sorted(p.stem for p in paths.jobs.glob("*.yaml"))))
        raise ConfigError(
            "job",
            f"must be {named} or the path of a YAML file",
            str(name),
            "`semistream init` writes one from your files; see docs/how-to/own-job.md.",
        )
    bases = [paths.data] if str(name) in SHIPPED else [paths.data, one_name(path.parent)]
    values = with_roles(given := read_yaml(path))
    if isinstance(roles := values.get("dimensions"), dict):
        inside = _declared_inside(roles)
        values |= {
            "dimensions": {
                role: _declared(given, inside, path, bases, paths) for role, given in roles.items()
            }
        }
    check_given(values.get("expect"))
    try:
        job = job_of(values)
    except ConfigError as e:
        raise as_given(e, given) from None
    roles = () if isinstance(job, StreamStreamJob) else job.roles
    check_name("name", job.name)
    _check_names(
        ("fact_table", job.fact_table),
        *(("dimensions", role.name) for role in roles),
        *(("dimension", role.dimension.name) for role in roles),
    )
    if not all([job.on] if isinstance(job, StreamStreamJob) else [role.on for role in roles]):
        raise ConfigError(
            "on",
            "must name at least one pair of columns",
            {},
            "For instance on: {o_custkey: c_custkey}.",
        )
    if isinstance(job, StreamStreamJob):
        return job.model_copy(
            update={"left": _located(job.left, bases), "right": _located(job.right, bases)}
        )
    for role in roles:
        for found, file in _files(role.dimension.name, path, paths):
            check_same(role.dimension, str(path), found, str(file))
    return job.model_copy(update={"stream": _located(job.stream, bases)})


def job_file(name: str | Path, paths: Paths) -> Path:
    """Return the YAML file of a job. The name is that of a shipped job, a path, or a name among the
    installation's jobs, with or without .yaml."""
    if str(name) in SHIPPED:
        return Path(__file__).with_name(f"{name}.yaml")
    named = (paths.jobs / f"{name}.yaml", paths.jobs / name)
    found = (path for path in (Path(name), *named) if path.is_file())
    return next(found, Path(name))


def load_dimensions(target: str | Path, paths: Paths | None = None) -> list[JoinedDimension]:
    """Load the dimensions of a job, given as for ``load_job``. A dimension that is declared in a
    separate file can also be loaded by itself, by its name or by that file's path."""
    paths = paths or Paths.from_environment()
    if (file := dimension_file(target, paths)) is not None:
        return [_joined(_dimension(read_yaml(file), file, paths), [], file, paths)]
    roles: dict[str, list[Role]] = {}
    for role in load_job(target, paths).roles:
        roles.setdefault(role.dimension.name, []).append(role)
    job = job_file(target, paths)
    return [
        _joined(
            same[0].dimension,
            same,
            next((file for _, file in _files(name, job, paths)), job),
            paths,
        )
        for name, same in roles.items()
    ]


def declaration(name: str, file: Path) -> Dimension | None:
    """Return the declaration of a dimension in the file of a job or of the dimension; None if the
    file has none, or cannot be read."""
    try:
        return next(
            (joined.dimension for joined in load_dimensions(file) if joined.dimension.name == name),
            None,
        )
    except ConfigError:
        return None


def dimension_file(target: str | Path, paths: Paths) -> Path | None:
    """Return the file that declares the dimension with this name or path; None for a job."""
    path, named = Path(target), paths.dimensions / f"{target}.yaml"
    if str(target) in SHIPPED:
        return None
    if not path.exists():
        return named if named.exists() else None
    return None if OF_JOBS & read_yaml(path).keys() else path


class JoinedDimension(NamedTuple):
    """A dimension and its use: the roles in which the given job joins the dimension, and the keys
    by which this job joins it or for which it was published before. Each key has a snapshot.
    declared_in: the file that declares the dimension; None if no file does."""

    dimension: Dimension
    roles: tuple[Role, ...]
    keys: tuple[tuple[str, ...], ...]
    declared_in: Path | None = None

    @property
    def key_columns(self) -> list[str]:
        """The dimension's columns that are part of a key, each once."""
        return list(dict.fromkeys((*self.dimension.business_key, *chain(*self.keys))))


def _joined(dimension: Dimension, roles: list[Role], file: Path, paths: Paths) -> JoinedDimension:
    keys: list[tuple[str, ...]] = []
    for key in (*(role.key for role in roles), *snapshot_roots(paths.snapshots, dimension.name)):
        if not any(same_key(key, other) for other in keys):
            keys.append(key)
    declared_in = one_name(file.parent) / file.name
    return JoinedDimension(dimension, tuple(roles), tuple(keys), declared_in)


def _declared_inside(roles: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the dimensions that are declared within the roles of a job, by name."""
    given = (role["dimension"] for role in roles.values())
    return {
        of["name"]: of
        for of in given
        if isinstance(of, dict) and (of.get("path") or of.get("table"))
    }


def _declared(
    role: dict[str, Any],
    inside: dict[str, dict[str, Any]],
    job: Path,
    bases: list[Path],
    paths: Paths,
) -> dict[str, Any]:
    """Return a role with its dimension's declaration. The declaration is in the job, in this role
    or another one, or in a separate file. inside: the declarations in the job, by name."""
    given = role["dimension"]
    if isinstance(given, str):
        given = inside.get(given, given)
    if isinstance(given, dict) and (given.get("path") or given.get("table")):
        path = given.get("path")
        return role | {"dimension": given | {"path": _below(path, bases)}}
    name = given["name"] if isinstance(given, dict) else str(given)
    found = _files(name, job, paths)
    if not found and not isinstance(given, dict):
        raise ConfigError(
            f"dimensions.{role['name']}",
            "must name a dimension that is declared, in this job or in a file",
            name,
            f"Looked for: {', '.join(map(str, _candidates(name, job, paths)))}.",
        )
    if not found:
        return role
    (dimension, file), *others = found
    for other, elsewhere in others:
        check_same(dimension, str(file), other, str(elsewhere))
    if isinstance(given, dict) and (more := {*given} - {"name"}):
        raise ConfigError(
            f"dimension {name}",
            "must be declared once",
            sorted(more),
            f"It is declared in {file}: leave these out in {job}.",
        )
    return role | {"dimension": dimension.model_dump()}


def _candidates(name: str, job: Path, paths: Paths) -> list[Path]:
    """Return the files that may declare a dimension of a job."""
    return list(
        dict.fromkeys(
            directory / f"{name}.yaml"
            for directory in (one_name(job.parent) / "dimensions", one_name(paths.dimensions))
        )
    )


def _files(name: str, job: Path, paths: Paths) -> list[tuple[Dimension, Path]]:
    """Return the declarations of a dimension in separate files, each with its file."""
    return [
        (_dimension(read_yaml(file), file, paths), file)
        for file in _candidates(name, job, paths)
        if file.exists()
    ]


def _dimension(values: dict[str, Any], file: Path, paths: Paths) -> Dimension:
    """Return the dimension that a file declares. A relative path is below ``paths.data`` if it
    exists there, otherwise below the directory of the file."""
    dimension = Dimension.load({"name": file.stem, **values})
    if dimension.name != file.stem:
        raise ConfigError(
            "name",
            "must be the name of the dimension's file",
            dimension.name,
            f"Rename it, or the file {file}.",
        )
    _check_names(("name", dimension.name))
    if not dimension.business_key:
        raise ConfigError(
            "business_key",
            f"must be given in {file}",
            None,
            "Name the columns that identify a row.",
        )
    bases = [paths.data, one_name(file.parent)]
    return dimension.model_copy(update={"path": _below(dimension.path, bases)})


def check_name(parameter: str, value: str) -> None:
    """Raise ConfigError for a text that is no name of a job or an app."""
    if not NAME.fullmatch(value):
        raise ConfigError(
            parameter,
            "must be at most 190 letters, digits, '_', '.' and '-', and not begin with '.'",
            value,
            "Give a simple name.",
        )


def _check_names(*named: tuple[str, str]) -> None:
    for parameter, value in named:
        if not IDENTIFIER.fullmatch(value):
            raise ConfigError(
                parameter,
                "must be a name of at most 40 letters, digits and underscores",
                value,
                "Rename it.",
            )


def _located(stream: StreamSpec, bases: list[Path]) -> StreamSpec:
    return stream.model_copy(
        update={
            "path": _below(stream.path, bases),
            "options_file": _below(stream.options_file, bases),
        }
    )


def _below(path: str | None, bases: list[Path]) -> str | None:
    """Return a path below the first of these directories where it exists, or else below the last;
    an absolute path stays."""
    if path is None or is_remote(path):
        return path
    found = next((b / path for b in bases if (b / path).exists()), bases[-1] / path)
    return without_dots(str(found))
