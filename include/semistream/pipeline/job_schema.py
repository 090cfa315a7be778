"""The JSON schema of a job's YAML file, for editors and for validation."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from semistream import settings
from semistream.column_format import formats
from semistream.expect import LEARNED, Expectations, difference
from semistream.job import SHORT_FORM, Dimension, Job, Role, StreamStreamJob

SCHEMA_FILE = "job.schema.json"  # in the directory of the jobs that `semistream init` writes
DIALECT = "https://json-schema.org/draft/2020-12/schema"
TEXT, TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
SHARE: list[JsonSchemaValue] = [
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "string", "pattern": "^[0-9.]+ *%$"},
]
# further forms of a setting, which a validator converts before pydantic checks them
ACCEPTED: dict[Any, list[JsonSchemaValue]] = {
    settings.pairs: [TEXT, TEXTS, {"type": "object", "additionalProperties": TEXT}],
    settings.names: [TEXT, TEXTS],
    settings.percent: SHARE,
    difference: SHARE,
    formats: [{"type": "object", "additionalProperties": {"type": ["string", "object"]}}],
}


class _AsWritten(GenerateJsonSchema):
    """The JSON schema of what a user may write in a YAML file, before validators convert it."""

    def function_before_schema(self, schema: Any) -> JsonSchemaValue:
        found = ACCEPTED.get(schema["function"]["function"])
        if found is None:
            return super().function_before_schema(schema)
        return {"anyOf": found} if len(found) > 1 else dict(found[0])


def job_schema() -> str:
    """Return the JSON schema of a job's YAML file, as JSON text."""
    return json.dumps(_schema(), indent=2, ensure_ascii=False) + "\n"


def _schema() -> JsonSchemaValue:
    definitions: dict[str, Any] = {}
    for kind in (Job, StreamStreamJob):
        schema = kind.model_json_schema(schema_generator=_AsWritten, ref_template="#/$defs/{model}")
        definitions |= schema.pop("$defs", {}) | {kind.__name__: schema}
    _complete(definitions)
    return {
        "$schema": DIALECT,
        "title": "A job of Semistream",
        "type": "object",
        "if": {"anyOf": [{"required": ["left"]}, {"required": ["right"]}]},
        "then": {"$ref": "#/$defs/StreamStreamJob"},
        "else": {"$ref": "#/$defs/Job"},
        "$defs": definitions,
    }


def _complete(definitions: dict[str, Any]) -> None:
    """Replace an expectation that is empty by the word for one without limits. Add the short forms
    that ``job.with_roles`` accepts: a role that has its dimension's settings or names its
    dimension, and a single role whose settings are at the top of the job."""
    for given in definitions[Expectations.__name__]["properties"].values():
        given["anyOf"] = [form for form in given["anyOf"] if form != {"type": "null"}]
        given["anyOf"].append({"const": LEARNED})
    job, role, dimension = (definitions[kind.__name__] for kind in (Job, Role, Dimension))
    del dimension["required"]  # a dimension without a name has its role's name
    either = {"anyOf": [TEXT, {"$ref": "#/$defs/Dimension"}]}
    beside = {
        name: dimension["properties"][name]
        for name in Dimension.model_fields
        if name not in Role.model_fields or name in ("path", "table")
    }
    role["properties"] |= beside | {
        "dimension": either
        | {"description": "A dimension that is declared elsewhere, by its name, or its settings"}
    }
    role["required"] = ["on"]
    of_role = {name: role["properties"][name] for name in SHORT_FORM[1:]}
    job["properties"] |= of_role | {
        "master": either | {"description": "The only dimension, in the place of dimensions"}
    }
    required = [name for name in job["required"] if name != "dimensions"]
    job["required"] = required
    job["oneOf"] = [{"required": ["dimensions"]}, {"required": ["master", "on"]}]
