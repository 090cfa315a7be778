"""``semistream algorithms``."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from semistream.cli import console
from semistream.cli.command import Command


def run(arguments: Namespace) -> int:
    from semistream.joins.registry import REGISTRY, Entry
    from semistream.stream_joins.registry import REGISTRY as STREAM_JOINS

    def entry(a: Entry, joins: str, **more: bool) -> dict[str, Any]:
        return {
            "name": a.name,
            "title": a.title,
            "paper": a.paper,
            "joins": joins,
            **more,
            "parameters": {
                n: {
                    "default": f.get_default(call_default_factory=True),
                    "description": f.description,
                }
                for n, f in a.parameters.model_fields.items()
            },
        }

    entries = [
        *(
            entry(a, "a stream and master data", needs_index=a.needs_index)
            for a in REGISTRY.values()
        ),
        *(entry(a, "two streams") for a in STREAM_JOINS.values()),
    ]
    console.show(arguments.json, entries, _print)
    return 0


def _print(entries: list[dict[str, Any]]) -> None:
    table = console.plain_table("name", "joins", "needs index", r"parameters \[default]", "paper")
    for e in entries:
        parameters = "\n".join(
            f"{n} [{p['default']}]: {p['description']}" for n, p in e["parameters"].items()
        )
        index = {True: "yes", False: "no"}[e["needs_index"]] if "needs_index" in e else ""
        table.add_row(e["name"], e["joins"], index, parameters.replace("[", r"\["), e["paper"])
    console.print_table(console.wide_console(160), table)


COMMAND = Command(
    "algorithms", "list the join algorithms and their parameters", run, json=True, files_only=True
)
