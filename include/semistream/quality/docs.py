"""Data Docs that people can read without a network. GX builds the site, and these classes render
its pages.

GX's standard pages load a dozen scripts and stylesheets from the network. The pages of this module
have one inline stylesheet and no script.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from great_expectations.render.renderer.site_builder import SiteBuilder
from jinja2 import Environment, PackageLoader, select_autoescape

from semistream.counted import counted
from semistream.quality import pictures
from semistream.quality.checkpoint import CheckResult, read_result

CODE = re.compile("`([^`]+)`")  # code in the text of a remedy


class Site(SiteBuilder):
    """A site without GX's images and fonts, which the rendered pages do not use."""

    def build(self, resource_identifiers: Any = None, build_index: bool = True) -> Any:
        self.target_store.copy_static_assets = lambda *_: None
        return super().build(resource_identifiers, build_index)


class _Part:
    """A component of GX's site builder. GX passes settings to each component, which are ignored."""

    def __init__(self, **_: Any):
        pass


class ReportRenderer(_Part):
    """The fields of a validation result that the report's template shows."""

    def render(self, result: Any) -> dict[str, Any]:
        checks = [read_result(r) for r in result.results]
        metas = [r.expectation_config.meta or {} for r in result.results]
        run: dict[str, Any] = next((m["run"] for m in metas if "run" in m), {})
        return {
            "run": run,
            "success": bool(result.success),
            "verdict": _verdict(run, checks),
            "checks": len(checks),
            "failed": [c for c in checks if not c.success],
            "warned": [c for c in checks if c.warned],
            "held": [c for c in checks if c.success and not c.warned],
            "time": _time(result.meta["validation_time"]),
            "home": "../" * 4,
        }


def _verdict(run: Mapping[str, Any], checks: Sequence[CheckResult]) -> str:
    """Return the verdict as a sentence."""
    failed = sum(not c.success for c in checks)
    if failed:
        fails = "fails" if failed == 1 else "fail"
        return f"{run['app']} is not complete: {failed} of {counted(len(checks), 'check')} {fails}."
    far = " as far as it was loaded" if run.get("unfinished") else ""
    far += ", as far as can be seen" if run["unseen"] else ""
    return f"{run['app']} is complete{far}: {run['counts']}"


class RunsRenderer(_Part):
    """The site's index: all runs, the latest first."""

    def render(self, links: dict[str, Any]) -> dict[str, Any]:
        runs = sorted(
            links.get("validations_links", []), key=lambda r: str(r["run_time"]), reverse=True
        )
        return {
            "runs": [
                {
                    "name": r["run_name"],
                    "suite": r["expectation_suite_name"],
                    "asset": r["asset_name"],
                    "success": r["validation_success"],
                    "time": _time(r["run_time"]),
                    "path": r["filepath"],
                }
                for r in runs
            ]
        }


class View:
    """A page in the form of one of this package's templates."""

    def __init__(self, template: str, **_: Any):
        self.template = template

    def render(self, document: dict[str, Any], **_: Any) -> str:
        return _templates().get_template(self.template).render(document)


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("semistream.quality"),
        autoescape=select_autoescape(["html"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": lambda v: (
            f"{v:,}" if isinstance(v, (int, float)) and not isinstance(v, bool) else v
        ),
        "counted": counted,
        "cell": lambda v: "NULL" if v is None else v,
        "words": lambda v: str(v).replace("-", " "),
        "label": lambda v: str(v).replace("_", " "),
        "flow": pictures.flow,
        "trend": pictures.trend,
        "parts": CODE.split,  # text and code, in turns
        "commands": lambda v: [c for c in CODE.findall(v) if " " in c],
        "csv": _csv,
    }
    environment.globals["css"] = (Path(__file__).parent / "templates" / "style.css").read_text()
    return environment


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a data link that contains a CSV file. All rows have the same columns."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    return "data:text/csv;charset=utf-8," + quote(text.getvalue())


def _time(value: Any) -> str:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
