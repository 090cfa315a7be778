"""The short form of a job with one role, whose settings stand at the job's top."""

from __future__ import annotations

import re
from typing import Any

from semistream.errors import ConfigError
from semistream.job.dimensions import Dimension, Role

# the settings of a job's only role, at the job's top
SHORT_FORM = ("master", "on", "columns", "max_unmatched", "late", "max_open_hours", "grace")


def with_roles(values: dict[str, Any]) -> dict[str, Any]:
    """Convert a job's settings from the short form of one role into ``dimensions``. Each role gets
    its name and its dimension. Raises ConfigError for settings of both forms.

    A dimension is a mapping, or a name if it is declared elsewhere.
    """
    if "left" in values or "right" in values:
        return values
    given = [name for name in SHORT_FORM if name in values]
    roles = values.get("dimensions")
    if roles is not None and given:
        raise ConfigError(
            ", ".join(given),
            "must not be given with dimensions",
            values[given[0]],
            f"Give each role its own dimension, {', '.join(SHORT_FORM[1:])}.",
        )
    if roles is None:
        if not given:
            return values
        master = values.get("master", {})
        short = {name: values[name] for name in SHORT_FORM[1:] if name in values}
        name = master.get("name") if isinstance(master, dict) else master
        if not isinstance(name, str):
            raise ConfigError(
                "master",
                "must be the name of a dimension, or a mapping with its name",
                master or None,
                "For instance master: {name: product, path: product.csv}.",
            )
        roles = {name: {"dimension": master, **short}}
    if not isinstance(roles, dict) or not all(
        isinstance(role, (dict, Role)) for role in roles.values()
    ):
        raise ConfigError(
            "dimensions",
            "must be a mapping of roles, each a mapping",
            roles,
            "For instance dimensions: {product: {path: product.csv, on: sku}}.",
        )
    rest = {k: v for k, v in values.items() if k not in SHORT_FORM}
    return rest | {"dimensions": {name: _role(name, role) for name, role in roles.items()}}


def _role(name: str, given: Any) -> Any:
    if isinstance(given, Role):
        return given
    role = dict(given)
    place = {of: role.pop(of) for of in ("path", "table") if of in role}
    if place:  # its other settings stand beside it
        of_dimension = Dimension.model_fields.keys() - Role.model_fields.keys()
        place |= {of: role.pop(of) for of in sorted(of_dimension & role.keys())}
    if place and "dimension" in role:
        raise ConfigError(
            f"dimensions.{name}",
            "must have a dimension, or a path or a table",
            sorted(place),
            "Leave one out: settings of a dimension stand under it.",
        )
    role.setdefault("dimension", {"name": name, **place} if place else name)
    if isinstance(role["dimension"], dict):
        role["dimension"] = {"name": name, **role["dimension"]}
    return {"name": name, **role}


def as_given(error: ConfigError, values: dict[str, Any]) -> ConfigError:
    """Return an error about a job whose parameter is named as the user gave it, which may be in the
    short form of one role."""
    if "master" not in values:
        return error
    (name,) = with_roles(values)["dimensions"]
    return error.renamed(
        lambda given: re.sub(
            r"^dimension(?=\.|$)", "master", given.removeprefix(f"dimensions.{name}.")
        )
    )
