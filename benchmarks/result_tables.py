"""The tables of the benchmarks' results, in Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.changes import changes_since, measured_at
from benchmarks.compared import COMPARED
from benchmarks.papers.kept import RESULTS
from benchmarks.verdicts import Verdict, ratio_of
from semistream.counted import counted

APP = "include/semistream/streaming"  # what benchmarks of the whole app also run
FILE_JOIN = "include/semistream/files"  # of `semistream join`
# of results that depend on what a join takes for a tuple, and on which join is chosen
JOINS = ["include/semistream/joins", "include/semistream/sizing", "include/semistream/cost_models"]
FILES = {
    "choice": JOINS,
    "sinks": [f"{APP}/sinks", "include/semistream/warehouse/dialects"],
    **{name: [APP] for name in ("scale-out", "workers", "budget", "start")},
    **{name: [*JOINS, APP] for name in ("spark", "late")},
    "latency": [*JOINS, APP, "benchmarks/latency.py"],  # which says when files come
    "commands": [
        FILE_JOIN,
        APP,
        *(f"include/semistream/{part}" for part in ("cli", "local.py", "pipeline", "provisioning")),
    ],
    "console": [
        *JOINS,
        FILE_JOIN,
        "include/semistream/master",
        "include/semistream/parquet_encoding.py",
    ],
    **{name: [*JOINS, FILE_JOIN, APP] for name in ("flink", "nexmark", "star")},
    "pathway": [*JOINS, FILE_JOIN],
    "stream-stream": ["include/semistream/stream_joins", APP],
}


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def of_rows(rows: Sequence[Mapping[str, Any]], options: Mapping[str, str]) -> str:
    """Return the table of a result file that the options choose, and the line below it."""
    if "latency" in options:
        return f"{_latency(rows, options)}\n"
    table = (
        _best(rows, options["best"])
        if "best" in options
        else _extra(rows, options)
        if "extra" in options
        else _chosen(rows)
        if "chosen" in options
        else _slower(rows)
        if "slower" in options
        else _shares(rows)
        if any("share" in r for r in rows)
        else _table(rows, options)
    )
    return "\n".join(["", *table, "", about_rows(rows), ""])


def _some(rows: Sequence[Mapping[str, Any]], options: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Return the rows that have results, of the peers and cases that the options `peers` and
    `cases` select."""
    peers = options["peers"].split(",") if "peers" in options else [r["peer"] for r in rows]
    return [
        r
        for r in rows
        if r["peer"] in peers
        and options.get("cases", "") in r["case"]
        and ("rate" in r or r["note"].startswith("cannot run"))
    ]


def _table(rows: Sequence[Mapping[str, Any]], options: Mapping[str, str]) -> list[str]:
    lines = [
        "| case | peer | rate, a second | rate over the baseline's | 95% interval | peak MB | "
        "remarks |",
        "| --- | --- | --: | --: | --- | --: | --- |",
    ]
    for r in _some(rows, options):
        ratio = f"{r['ratio']:.3g}" if r.get("ratio") is not None else ""
        lines.append(
            f"| {r['case']} | {r['peer']} | {_rate(r)} | {ratio} | {_interval(r)} | "
            f"{_resident(r)} | {r['note']} |"
        )
    return lines


def _extra(rows: Sequence[Mapping[str, Any]], options: Mapping[str, str]) -> list[str]:
    columns = [c.partition(":") for c in options["extra"].split(",")]
    names, heads = [name for name, *_ in columns], [head or name for name, _, head in columns]
    lines = [f"| case | peer | {' | '.join(heads)} |", "| --- | --- " + "| --: " * len(names) + "|"]
    return lines + [
        f"| {r['case']} | {r['peer']} | " + " | ".join(f"{r['extra'][n]:.3g}" for n in names) + " |"
        for r in _some(rows, options)
        if "extra" in r
    ]


def _latency(rows: Sequence[Mapping[str, Any]], options: Mapping[str, str]) -> str:
    """Return a sentence on the latency of the one row that the options choose, and where its
    command, commit and machine stand."""
    [row] = _some(rows, options)
    return (
        f"A row is in its table {row['extra']['all p50']:.1f} s after its file came, at the "
        f"median, and {row['extra']['all p99']:.1f} s\nat the 99th percentile ({row['case']}; "
        "[how it was measured](docs/benchmarks.md#from-arrival-to-commit))."
    )


def _chosen(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one row for each algorithm: the number of settings at which it was chosen, and the
    ratio of its rate there to that of the fastest algorithm."""
    lines = [
        "| chosen | settings | was the fastest | had at least 0.8 of the fastest's rate | least "
        "share of that rate |",
        "| --- | --: | --: | --: | --: |",
    ]
    for algorithm, count in Counter(r["peer"] for r in rows).most_common():
        ratios = [r["ratio"] for r in rows if r["peer"] == algorithm]
        lines.append(
            f"| {algorithm} | {count} | {sum(x >= 1 for x in ratios)} | "
            f"{sum(x >= 0.8 for x in ratios)} | {min(ratios):.2f} |"
        )
    return lines


def _slower(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one row for each setting at which another algorithm was faster than the chosen one:
    the ratio of their rates, and the ratio that the cost models expected."""
    lines = [
        "| setting | chosen | fastest | chosen's rate over the fastest's | the models expected |",
        "| --- | --- | --- | --: | --: |",
    ]
    for r in sorted(rows, key=lambda r: r["ratio"]):
        if r["ratio"] < 1:
            mine, best = (r["predicted"].get(r[a]) for a in ("peer", "baseline"))
            lines.append(
                f"| {r['case']} | {r['peer']} | {r['baseline']} | {r['ratio']:.2f} | "
                f"{f'{mine / best:.2f}' if best else ''} |"
            )
    return lines


def compared() -> str:
    """Return a row for each of COMPARED: the ratio of Semistream's rate to the peer's in the same
    repetitions, and the peak resident memory of both."""
    lines = [
        "",
        "| Semistream | compared with | times as fast (95% interval) | peak MB: ours, theirs |",
        "| --- | --- | --- | --: |",
    ]
    old = dict[str, None]()  # a dict keeps the order
    for c in COMPARED:
        rows = {r["peer"]: r for r in rows_of(c.name) if r["case"].startswith(c.case)}
        ours, other = rows[c.ours], rows[c.other]
        ratio = ratio_of(ours["rates"], other["rates"])
        interval = f"{ratio.low:.3g}–{ratio.high:.3g}" if len(ours["rates"]) > 1 else "one run"
        undecided = ", not decided" if ratio.verdict is Verdict.NOT_DECIDED else ""
        lines.append(
            f"| {c.what} | {c.beside} | {ratio.value:.3g} ({interval}{undecided}) | "
            f"{_resident(ours)}, {_resident(other)} |"
        )
        if _flaws_of(rows.values()):
            old[c.name] = None
    note = ["", f"**To be measured again**, as the code has changed since: {', '.join(old)}."]
    return "\n".join([*lines, *(note if old else []), ""])


def _resident(row: Mapping[str, Any]) -> str:
    return f"{row['rss_peak'] / 1e6:,.0f}" if row.get("rss_peak") else ""


def _best(rows: Sequence[Mapping[str, Any]], ours: str) -> list[str]:
    """Return one row for each case: the best other peer, the ratio of the rate of `ours` to its
    rate, and the peers that had not settled and thus may be faster."""
    lines = [
        f"| case | rate of {ours}, a second | best of the others | its rate, a second | "
        f"rate of {ours} over its | 95% interval | not settled |",
        "| --- | --: | --- | --: | --: | --- | --- |",
    ]
    for case in dict.fromkeys(r["case"] for r in rows):
        mine = [r for r in rows if r["case"] == case and "rate" in r]
        [here] = [r for r in mine if r["peer"] == ours]
        best = max((r for r in mine if r is not here), key=lambda r: r["ratio"])
        other = {
            "verdict": best["verdict"],
            "ratio_low": best["ratio_high"],
            "ratio_high": best["ratio_low"],
        }
        unsettled = [r["peer"] for r in mine if not r["settled"]]
        turned = {k: 1 / v if isinstance(v, float) else v for k, v in other.items()}
        lines.append(
            f"| {case} | {_rate(here)} | {best['peer']} | {_rate(best)} | "
            f"{1 / best['ratio']:.3g} | {_interval(turned)} | {', '.join(unsettled)} |"
        )
    return lines


def _shares(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of caches, with one row for each case and one column for each policy, in
    percent of the stream."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for r in rows:
        if "share" in r:
            found.setdefault(r["case"], []).append(r)
    policies = [r["peer"] for r in next(iter(found.values()))][1:]
    lines = [
        f"| case | tuples in H_R | H_R | {' | '.join(policies)} |",
        "| --- " + "| --: " * (2 + len(policies)) + "|",
    ]
    for case, mine in found.items():
        shares = (
            f"{100 * r['share']:.2f}"
            + (f" ± {100 * r['share_interval']:.2f}" if r["share_interval"] is not None else "")
            for r in mine
        )
        lines.append(f"| {case} | {mine[0]['capacity']:,} | {' | '.join(shares)} |")
    return lines


def _rate(row: Mapping[str, Any]) -> str:
    if "rate" not in row:
        return ""
    return f"{row['rate']:,.0f}" if row["rate"] >= 100 else f"{row['rate']:.3g}"


def _interval(row: Mapping[str, Any]) -> str:
    """Return the interval of the ratio, or of the rate if there is no baseline. A ratio whose
    interval contains 1 is not decided."""
    if row.get("ratio_low") is None:
        wide = row.get("rate_interval")
        return f"± {wide:,.0f} a second" if wide is not None else ""
    if row["ratio_low"] == row["ratio_high"]:
        return ""
    undecided = ", not decided" if row["verdict"] == "not decided" else ""
    return f"{row['ratio_low']:.3g}–{row['ratio_high']:.3g}{undecided}"


def about_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    first = rows[0]
    return measured_at(
        first["command"],
        first["commit"],
        f"{first['processor']}, {counted(first['cores'], 'core')}",
        _flaws_of(rows),
    )


def _flaws_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    first, *_ = rows = list(rows)
    return changes_since(
        first["commit"],
        first["dirty"],
        {r["peer"] for r in rows},
        FILES.get(first["benchmark"], []),
    )
