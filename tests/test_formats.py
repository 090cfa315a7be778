"""Columns that are not written as usual: what is declared of them is read exactly, by console, job
and dimension alike, and nothing else is changed."""

import json
import re
import shlex
import unicodedata
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from loads import verify
from provisioned import provision, publish
from semistream.column_format import DIRECTIVES, ColumnFormat, declared, formats, paired
from semistream.ddl import type_name
from semistream.errors import ConfigError, SemistreamError
from semistream.files.convert import cast_cells, prepared_cells
from semistream.files.inference import infer_formatted_type
from semistream.files.opening import open_source
from semistream.job import Job, StreamSpec, StreamStreamJob
from semistream.master.publish import current_manifest
from semistream.settings import read_yaml
from semistream.streaming.batch import join_dataframe
from semistream.streaming.kept_settings import check_kept
from semistream.streaming.settings import LoadSettings
from semistream.streaming.sources.file_reader import find_reader
from semistream.streaming.sources.registry import find_source
from semistream.tuning.sweep import _bounded_job
from semistream.warehouse import connect

D = Decimal
BAD = "does not fit"


def read(form, cells):
    """Values of cells in the type that they are found to have, or BAD."""
    form, column = declared("c", form), pa.array(cells, pa.string()).cast(pa.binary())
    texts, unfit = prepared_cells("c", column, form)
    kind = infer_formatted_type(column, form) if form.notation else pa.string()
    values, bad = cast_cells(texts, kind, exact=True)
    return kind, [
        BAD if i in {*unfit.tolist(), *bad.tolist()} else v
        for i, v in enumerate(values.to_pylist())
    ]


@pytest.mark.parametrize(
    ("form", "cells"),
    [
        (
            "%d/%m/%Y",
            {
                "31/12/2020": date(2020, 12, 31),
                "1/2/2021": date(2021, 2, 1),
                "2020-12-31": BAD,
                "31/12/20": BAD,
                "29/02/2021": BAD,
                "29/02/2020": date(2020, 2, 29),
                "29/02/1900": BAD,
                "13/13/2020": BAD,
                "31/12/2020x": BAD,
                "31/12/": BAD,
                " 01/01/0001 ": date(1, 1, 1),
                "01/01/0000": BAD,
                "00/01/2020": BAD,
                "NA": None,
                "": None,
                None: None,
            },
        ),
        ("%Y%m%d", {"20201231": date(2020, 12, 31), "2020123": BAD, "202012311": BAD}),
        ("%d.%m.%y", {"1.1.69": date(1969, 1, 1), "1.1.68": date(2068, 1, 1), "1.1.1999": BAD}),
        (
            "%d %b %Y",
            {
                "3 mar 1999": date(1999, 3, 3),
                "03 MAR 1999": date(1999, 3, 3),
                "3 March 1999": BAD,
                "3 xyz 1999": BAD,
            },
        ),
        (
            "%B %d, %Y",
            {
                "September 9, 2020": date(2020, 9, 9),
                "May 1, 2020": date(2020, 5, 1),
                "Sep 9, 2020": BAD,
            },
        ),
        ("%Y年%m月%d日", {"2020年12月31日": date(2020, 12, 31), "2020-12-31": BAD}),
        (
            "%d.%m.%Y %H:%M:%S",
            {
                "31.12.2020 01:02:03": datetime(2020, 12, 31, 1, 2, 3),
                "31.12.2020 24:00:00": BAD,
                "31.12.2020 23:59:60": BAD,
                "31.12.2020": BAD,
            },
        ),
        (
            "%d.%m.%Y %I:%M %p",
            {
                "1.1.2020 12:00 AM": datetime(2020, 1, 1),
                "1.1.2020 12:00 pm": datetime(2020, 1, 1, 12),
                "1.1.2020 13:00 PM": BAD,
                "1.1.2020 1:05 PM": datetime(2020, 1, 1, 13, 5),
            },
        ),
        (
            "%Y%m%dT%H%M%S.%f",
            {
                "20200101T010203.5": datetime(2020, 1, 1, 1, 2, 3, 500000),
                "20200101T010203.1234567": BAD,
            },
        ),
        (
            "1.234,56",
            {
                "1.234,56": D("1234.56"),
                "-1.234.567": D(-1234567),
                "0,5": D("0.5"),
                ",5": D("0.5"),
                "5,": D(5),
                "007,5": D("7.5"),
                "+3": D(3),
                "1234,5": D("1234.5"),
                "1.23": BAD,
                "1.234.56": BAD,
                "12.34": BAD,
                "1234.567": BAD,
                ".123": BAD,
                "1,2,3": BAD,
                "1.234,567": D("1234.567"),
                "−5": D(-5),
                "5 €": BAD,
                "1e3": BAD,
                "- 5": D(-5),
                "--5": BAD,
                ",": BAD,
                "-": BAD,
                "NA": None,
                "\xa05\u202f": D(5),
            },
        ),
        ("1,234.56", {"1,234.56": D("1234.56"), "1234.56": D("1234.56"), "1.234,56": BAD}),
        (
            "1 234,56",
            {
                "1 234,5": D("1234.5"),
                "1\u202f234,5": D("1234.5"),
                "1\xa0234": D(1234),
                "12 34": BAD,
            },
        ),
        ("1'234.56", {"1'234.5": D("1234.5"), "1’234.5": D("1234.5")}),
        (
            "1.234,56 €",
            {
                "1.234,5 €": D("1234.5"),
                "€ 5": D(5),
                "-€5": D(-5),
                "€-5": D(-5),
                "€ 1,5": D("1.5"),
                "5": D(5),
                "5 $": BAD,
                "5\xa0€": D(5),
            },
        ),
        (
            {"decimal": ".", "strip": ["EUR", "$"]},
            {"$3.50": D("3.5"), "3.50 EUR": D("3.5"), "3.50 USD": BAD},
        ),
        (
            {"decimal": ",", "percent": True},
            {
                "12,5 %": D("0.125"),
                "100%": D(1),
                "0,01%": D("0.0001"),
                "-5 %": D("-0.05"),
                "5": BAD,
            },
        ),
        ("1234,56 %", {"12,5 %": D("0.125")}),
        ({"decimal": ",", "strip": "%"}, {"12,5 %": D("12.5"), "7": D(7)}),
        (
            {"thousands": ","},
            {"1,234": 1234, "12": 12, "1,23": BAD, "9,007,199,254,740,993": 9007199254740993},
        ),
        ({"thousands": ","}, {"12345678901234567890": D("12345678901234567890")}),
        ("trim", {"  a b ": "a b", "x\xa0": "x", "": "", None: None}),
        (
            "fold",
            {"ABC": "abc", "Straße": "strasse", "ÀÉ": "àé", None: None, "ΑΣ": "ας".casefold()},
        ),
        ("NFC", {"e\u0301": "é", "é": "é", "ﬁ": "ﬁ"}),
        ("NFKC", {"ﬁ": "fi"}),
        ("fold NFC", {"E\u0301": "é", "É": "é"}),
        ({"case": "upper"}, {"aß": "ASS", "é": "É"}),
        ({"zeros": "strip"}, {"0012": "12", "000": "0", "0a": "0a", "12": "12"}),
        (
            {"fraction": "strip"},
            {"7.0": "7", "-7.00": "-7", "7.5": "7.5", "7.": "7.", "a.0": "a.0"},
        ),
        ({"fraction": "strip", "zeros": "strip"}, {"007.0": "7", "0.0": "0"}),
        ({"zeros": 5}, {"12": "00012", "a1": "a1", "123456": "123456", "": ""}),
        ({"missing": ["-", "n/a"]}, {"-": None, " -": " -", "n/a": None, "x": "x", "NA": "NA"}),
        ({"missing": "-", "trim": True}, {" - ": None}),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_what_a_cell_is_by_its_format(form, cells):
    for some in ([*cells], *([c] for c in cells)):  # among others, and alone
        found = dict(zip(some, read(form, some)[1], strict=True))
        assert found == {c: cells[c] for c in some}


def test_the_types_that_formats_imply():
    for form, cells, kind in (
        ("%d/%m/%Y", [], pa.date32()),
        ("%d/%m/%Y %H:%M", ["x"], pa.timestamp("us")),
        ("%d/%m/%Y %H:%M%z", [], pa.timestamp("us", "UTC")),
        ("1.234,56", ["1,5", "2,125", "3"], pa.decimal128(38, 3)),
        ("1.234,56", ["1"], pa.decimal128(38, 0)),
        ("1.234,56", [], pa.decimal128(38, 10)),
        ({"thousands": "."}, ["1.000"], pa.int64()),
        ({"thousands": "."}, ["1.000,5"], pa.decimal128(38, 1)),
    ):
        assert read(form, cells)[0] == kind


def test_a_time_with_a_zone_is_that_moment():
    east = timezone(timedelta(hours=2))
    values = read(
        "%d/%m/%Y %H:%M %z",
        [
            "31/12/2020 01:00 +0200",
            "31/12/2020 01:00 +02:00",
            "30/12/2020 23:00 Z",
            "31/12/2020 01:00",
        ],
    )[1]
    assert values[:3] == [datetime(2020, 12, 31, 1, tzinfo=east)] * 3 and values[3] == BAD


TIMES = [
    "%d/%m/%Y",
    "%Y%m%d",
    "%d.%m.%Y %H:%M:%S",
    "%m-%d-%Y %I:%M:%S.%f %p",
    "%d %B %Y, %H:%M",
    "%Y%m%d%H%M%S%f",
    "%b %d %Y",
]


@settings(max_examples=60)
@given(
    st.lists(st.datetimes(datetime(1000, 1, 1)), min_size=1, max_size=20), st.sampled_from(TIMES)
)
def test_times_that_python_writes_are_read_back(times, form):
    written = [t.strftime(form) for t in times]
    wanted = [datetime.strptime(w, form) for w in written]
    assert read(form, written)[1] == [
        w if "%H" in form or "%I" in form else w.date() for w in wanted
    ]


@settings(max_examples=60)
@given(
    st.lists(st.decimals(-(10**15), 10**15, places=4), min_size=1, max_size=20),
    st.sampled_from([",", " ", "_", "'", ""]),
    st.booleans(),
    st.booleans(),
)
def test_numbers_that_python_writes_are_read_back(numbers, thousands, comma, percent):
    decimal = "," if comma and thousands != "," else "."
    form = {"decimal": decimal, "thousands": thousands, "percent": percent, "strip": "€"}
    table = str.maketrans({",": thousands, ".": decimal})
    written = [f"{n:,.4f}".translate(table) + ("%" if percent else " €") for n in numbers]
    assert read(form, written)[1] == [n / 100 if percent else n for n in numbers]


@settings(max_examples=60)
@given(
    st.lists(st.none() | st.text(max_size=8), max_size=20),
    st.sampled_from(["fold", "upper"]),
    st.sampled_from(["", "NFC", "NFKD"]),
)
def test_texts_become_what_python_makes_of_them(texts, case, form):
    def normal(cell):
        cell = unicodedata.normalize(form, cell) if form else cell
        cell = cell.casefold() if case == "fold" else cell.upper()
        return unicodedata.normalize(form, cell) if form else cell

    known = [
        t if t is None or all(unicodedata.category(c) != "Cn" for c in t) else "x" for t in texts
    ]  # assigned in both versions of Unicode
    assert read({"case": case, "unicode": form}, known)[1] == [t and normal(t) for t in known]


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("%d/%m", "formats.c.time.*must have a year"),
        ("%d/%q/%Y", "%q, which is not known.*%d day"),
        ("%d/%m/%Y %M", "time of day from hours on"),
        ("%d/%m/%Y %I:%M", "time of day"),
        ("%d/%d/%m/%Y", "a day, once"),
        ("abc", "formats.c'.*must tell how"),
        ("", "must tell how"),
        ({}, "must tell how"),
        (5, "must tell how"),
        ("{trim: false}", "must tell how"),
        ({"kase": "fold"}, "formats.c.kase.*Known are: time, decimal"),
        ({"case": "x"}, "formats.c.case.*'fold'"),
        ({"zeros": 0}, "formats.c.zeros"),
        ({"decimal": ",", "thousands": ","}, "thousands.*must differ from the decimal"),
        ({"time": "%d/%m/%Y", "case": "fold"}, "formats.c.case.*not of times"),
        ({"time": "%d/%m/%Y", "decimal": ","}, "of times or of numbers"),
        ({"strip": "1"}, "signs without digits"),
        ({"percent": True, "strip": "%"}, "percent: true, and 12.5 % is 0.125"),
    ],
)
def test_a_wrong_declaration_is_refused(form, message):
    with pytest.raises(ConfigError, match=message):
        StreamSpec.load({"formats": {"c": form}})


def test_short_forms_on_the_command_line():
    given = formats(["a=%d/%m/%Y", "b=1.234,56 €", "c=trim,fold", "d={missing: ['-'], trim: true}"])
    assert [f.model_dump(exclude_defaults=True) for f in given.values()] == [
        {"time": "%d/%m/%Y"},
        {"decimal": ",", "thousands": ".", "strip": ("€",)},
        {"trim": True, "case": "fold"},
        {"missing": ("-",), "trim": True},
    ]
    assert formats([f"{c}={f}" for c, f in given.items()]) == given  # as it is shown
    for wrong in (["a"], ["a=trim", "a=fold"], 3):
        with pytest.raises(ConfigError, match="formats"):
            formats(wrong)


def test_the_formats_that_the_docs_show(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "input.md").read_text()
    [example] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (path := tmp_path / "docs.yaml").write_text(example)
    given = read_yaml(path)["stream"]["formats"]
    found = formats(given)
    assert set(DIRECTIVES) == set(re.findall("`%(.)`", page))
    assert all(f"| `{name}` |" in page for name in ColumnFormat.model_fields)
    command = shlex.split(re.search("command line: `(.*?)`", page, re.DOTALL)[1])
    told = formats([part for part in command if part != "--formats"])
    assert all(found[column] == form for column, form in told.items()) and len(told) == 4
    for column, cell, value in (
        ("sold_at", "31/12/2020", date(2020, 12, 31)),
        ("rate", "12,5 %", D("0.125")),
        ("sku", "STRASSE ", "strasse"),
    ):
        assert read(given[column], [cell])[1] == [value]


# ---- files

ROWS = [
    ("1", "31/12/2020", "1.234,5", " Straße "),
    ("2", "2021-01-02", "1", "B"),
    ("3", "02/01/2021", "1,2,3", "c"),
    ("4", "02/01/2021", "7", "D"),
]
NAMES = ("id", "day", "amount", "sku")
FORMATS = {"day": "%d/%m/%Y", "amount": "1.234,56", "sku": "trim fold"}


def write(directory, kind, rows=ROWS, names=NAMES):
    path = directory / f"s.{kind}"
    if kind == "csv":
        path.write_text("".join(",".join(f'"{c}"' for c in r) + "\n" for r in [names, *rows]))
    elif kind == "json":
        path.write_text("".join(json.dumps(dict(zip(names, r, strict=True))) + "\n" for r in rows))
    else:
        pq.write_table(
            pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path
        )
    return path


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
@pytest.mark.parametrize("told", [False, True])
def test_files_of_every_kind_are_read_so(tmp_path, kind, told):
    path = write(tmp_path, kind)
    types = {"day": "timestamp", "amount": "decimal(12,2)"} if told else {}
    source = open_source("stream", path, types=types, formats=formats(FORMATS))
    chunks = list(source.chunks())
    found = [r for c in chunks for r in c.rows.select(NAMES[1:]).to_pylist()]
    midnight = datetime if told else date
    assert found == [
        {"day": midnight(2020, 12, 31), "amount": D("1234.5"), "sku": "strasse"},
        {"day": midnight(2021, 1, 2), "amount": D(7), "sku": "d"},
    ]
    kinds = {f.name: type_name(f.type) for f in source.schema}
    assert [r.detail for c in chunks for r in c.rejected] == [
        f"day: '2021-01-02' is not {kinds['day']} as %d/%m/%Y",
        f"amount: '1,2,3' is not {kinds['amount']} as 1.234,56",
    ]
    assert [r.text for c in chunks for r in c.rejected][0].count("2021-01-02") == 1
    # other columns are read as before
    plain = open_source("stream", path)
    assert source.schema.field("id") == plain.schema.field("id")


def test_numbers_of_json_are_not_texts_of_a_format(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"amount": "1.234"}\n{"amount": 1.234}\n{"amount": null}\n')
    chunk = next(open_source("stream", path, formats=formats({"amount": "1.234,56"})).chunks())
    assert chunk.rows.column(0).to_pylist() == [D(1234), None]
    assert [r.detail for r in chunk.rejected] == [
        "amount: '1.234' is not DECIMAL(38,0) as 1.234,56"
    ]


def test_words_for_missing_let_a_column_be_of_numbers(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,temperature,note\n1,-,-\n2,1.5,x\n")
    source = open_source("stream", path, formats=formats({"temperature": {"missing": ["-", "."]}}))
    assert [r for c in source.chunks() for r in c.rows.to_pylist()] == [
        {"id": 1, "temperature": None, "note": "-"},
        {"id": 2, "temperature": 1.5, "note": "x"},
    ]


def test_a_padded_key_stays_a_text_whatever_the_sample_has(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("zip,n\n12345,1\n")
    source = open_source("stream", path, formats=formats({"zip": {"zeros": 5}}))
    assert source.schema.field("zip").type == pa.string()


@pytest.mark.parametrize(
    ("form", "types", "message"),
    [
        ({"dy": "%d/%m/%Y"}, {}, "must name columns of the stream.*'dy'.*id, day"),
        ({"day": "%d/%m/%Y"}, {"day": "string"}, "formats.day.*a date or a timestamp.*day: STRING"),
        ({"day": "%d/%m/%Y %H:%M"}, {"day": "date"}, "formats.day.*whose type is a timestamp"),
        ({"day": "%d/%m/%Y %H:%M%z"}, {"day": "timestamp"}, "times with a zone"),
        ({"amount": "1.234,56"}, {"amount": "date"}, "formats.amount.*a number"),
    ],
)
def test_a_format_of_another_type_than_the_column_s_is_refused(tmp_path, form, types, message):
    with pytest.raises(ConfigError, match=message):
        open_source("stream", write(tmp_path, "csv"), types=types, formats=formats(form))


def test_a_format_of_values_that_have_a_type_is_refused(tmp_path):
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    for form in ("1.234,56", "%d/%m/%Y", {"missing": "1"}):
        with pytest.raises(ConfigError, match="formats.n.*must be of a column of texts.*n: BIGINT"):
            open_source("stream", tmp_path / "a.parquet", formats=formats({"n": form}))
    # what a key's texts become says nothing of other values
    open_source("stream", tmp_path / "a.parquet", formats=formats({"n": "trim"}))


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.null(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_texts_of_parquet_in_any_type(tmp_path, kind):
    null = pa.types.is_null(kind)
    cells = {"k": ["A ", None], "d": ["31/12/2020", None], "n": ["1,5", None]}
    pq.write_table(
        pa.table({c: pa.array([None, None] if null else v).cast(kind) for c, v in cells.items()}),
        tmp_path / "a.parquet",
    )
    source = open_source(
        "stream",
        tmp_path / "a.parquet",
        formats=formats({"k": "trim fold", "d": "%d/%m/%Y", "n": "1.234,56"}),
    )
    assert source.schema.field("d").type == pa.date32()
    assert pa.types.is_decimal(source.schema.field("n").type)
    source.assign_types()
    text = "a" if kind != pa.binary() else b"a"
    first = {"k": text, "d": date(2020, 12, 31), "n": D("1.5")}
    assert [r for c in source.chunks() for r in c.rows.to_pylist()] == [
        dict.fromkeys(first) if null else first,
        dict.fromkeys(first),
    ]


def test_text_that_is_no_utf8_is_unparsable(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"k,n\n\xe9,1\n A ,2\n")
    chunk = next(
        open_source("stream", tmp_path / "a.csv", formats=formats({"k": "trim fold"})).chunks()
    )
    assert chunk.rows.to_pylist() == [{"k": "a", "n": 2}]
    assert [r.detail for r in chunk.rejected] == ["k: not UTF-8"]


# ---- keys


def test_a_key_has_one_form_on_both_sides():
    job = {
        "name": "j",
        "stream": {"formats": {"sku": {"trim": True, "missing": "-"}}},
        "master": {"name": "m", "formats": {"price": "1,234.56"}},
        "on": {"sku": "code"},
        "fact_table": "f",
    }
    read = Job.load(job)
    assert read.roles[0].dimension.formats["code"].normal_form == {"trim": True}
    assert read.roles[0].dimension.formats["code"].missing == ()
    assert read.stream.formats["sku"].missing == ("-",)
    assert "price" in read.roles[0].dimension.formats
    assert Job.load(json.loads(read.to_ledger())) == read
    job["master"]["formats"]["code"] = "fold"
    with pytest.raises(
        ConfigError,
        match=r"formats.sku.*same form on both sides.*trim.*fold.*"
        r"one side only",
    ):
        Job.load(job)
    two = StreamStreamJob.load(
        {
            "name": "j",
            "left": {},
            "right": {"formats": {"b": "NFC"}},
            "on": {"a": "b"},
            "fact_table": "f",
        }
    )
    assert two.left.formats == {"a": two.right.formats["b"]}
    # a date's notation is that of one file
    assert paired([("a", "b")], formats({"a": "%d/%m/%Y"}), {})[1] == {}


def test_what_tells_tuples_apart_stays(tmp_path):
    def two(form, **more):
        side = {"id": ["id"], "formats": {"a": form, "n": "1.234,56"} | more}
        return StreamStreamJob.load(
            {"name": "j", "left": side, "right": {}, "on": {"a": "b"}, "fact_table": "f"}
        )

    former = json.loads(two("fold").to_ledger())
    check_kept(two("fold", n="%d/%m/%Y"), former)  # of neither a key nor an id
    check_kept(two({"case": "fold", "missing": "-"}), former)  # of this file's cells
    for job, column in ((two("trim"), "a"), (two("fold", id={"missing": "-"}), "id")):
        with pytest.raises(ConfigError, match=f"left.formats.{column}.*must stay"):
            check_kept(job, former)
    with pytest.raises(ConfigError, match="left.formats.a"):
        check_kept(two("fold"), {"left": {}, "right": {}})  # of a release without formats


def test_another_source_of_a_job_keeps_its_keys_form():
    job = Job.load(
        {
            "name": "j",
            "stream": {"format": "csv", "formats": FORMATS},
            "master": {"name": "m"},
            "on": "sku",
            "fact_table": "f",
        }
    )
    other = LoadSettings.load({"job": "j", "source_format": "parquet"}).applied(job)
    assert other.stream.formats == {"sku": job.stream.formats["sku"]}


def test_a_sweep_s_bounded_stream_has_the_form_of_the_snapshot_s_keys(tmp_path):
    job = Job.load(
        {
            "name": "j",
            "stream": {},
            "master": {"name": "m"},
            "on": {"sku": "code"},
            "fact_table": "f",
        }
    )
    bounded = _bounded_job(job.roles[0], tmp_path, {"code": {"trim": True}})
    assert bounded.stream.formats == formats({"sku": "trim"})


@pytest.mark.parametrize("spec", [{"format": "orc"}, {"format": "zipf"}, {"format": "kafka"}])
def test_formats_that_nobody_would_heed_are_refused(spec):
    with pytest.raises(ConfigError, match=r"stream\.(formats|columns)"):
        assert find_source(StreamSpec.load(spec | {"formats": {"k": "trim"}})).schema


def test_a_reader_of_a_stream_has_its_formats(tmp_path):
    write(tmp_path, "csv")
    spec = {"format": "csv", "path": str(tmp_path), "formats": FORMATS, "id": ["id"]}
    for columns, kind in (
        (None, pa.decimal128(38, 1)),
        ("id BIGINT, day DATE, amount DECIMAL(12,2), sku STRING", pa.decimal128(12, 2)),
    ):
        reader = find_reader(StreamSpec.load(spec | {"columns": columns}))
        assert reader.schema.field("amount").type == kind
        chunk = next(reader.open().read(tmp_path / "s.csv"))
        assert chunk.rows.column("amount").to_pylist() == [D("1234.5"), D(7)]
        assert [r.id for r in chunk.rejected] == ["2", "3"]
    with pytest.raises(ConfigError, match="formats.day.*a date"):
        find_reader(
            StreamSpec.load(
                spec | {"columns": "id BIGINT, day STRING, amount DECIMAL(12,2), sku STRING"}
            )
        )


# ---- console


def test_the_console_joins_messy_files(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "csv")
    Path("m.csv").write_text("code,name\nSTRASSE,road\nd ,letter\n")
    Path("c.yaml").write_text(
        'on: {sku: code}\nformats:\n  day: "%d/%m/%Y"\n'
        '  amount: {decimal: ",", thousands: "."}\n  sku: {trim: true, case: fold}\n'
    )
    join = ("join", "--stream", "s.csv", "--out", "o.jsonl")
    code, out, _ = run(*join, "--config", "c.yaml", "--master", "m.csv", "--snapshot", "snapshot")
    assert code == 0 and "day: '2021-01-02' is not DATE as %d/%m/%Y" in out
    joined = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    assert sorted((r["sku"], r["name"], r["day"], float(r["amount"])) for r in joined) == [
        ("d", "letter", "2021-01-02", 7.0),
        ("strasse", "road", "2020-12-31", 1234.5),
    ]
    assert current_manifest("snapshot").formats == {"code": {"trim": True, "case": "fold"}}
    # the snapshot's keys have a form, which holds for the stream
    again = ("--on", "sku=code", "--snapshot", "snapshot")
    assert run(*join, *again)[0] == 0
    assert len(Path("o.jsonl").read_text().splitlines()) == 2
    assert run(*join, *again, "--formats", "sku=trim fold", "--formats", "day={missing: x}")[0] == 0
    code, _, err = run(*join, *again, "--formats", "sku=lower")
    assert code == 2 and "same form on both sides" in err
    assert run(*join, *again, "--master-formats", "name=trim")[0] == 2
    assert (
        run(
            "snapshot",
            "--master",
            "m.csv",
            "--on",
            "code",
            "--out",
            "other",
            "--formats",
            "code=trim,fold",
        )[0]
        == 0
    )
    assert current_manifest("other").formats == {"code": {"trim": True, "case": "fold"}}
    size = run("estimate-join-size", "s.csv", "other", "--on", "sku=code", "--json")[1]
    assert json.loads(size)["estimate"] == 2
    assert (
        run(
            "join-streams",
            "--left",
            "s.csv",
            "--right",
            "m.csv",
            "--on",
            "sku=code",
            "--right-formats",
            "code=trim fold",
            "--out",
            "p.jsonl",
        )[0]
        == 0
    )
    assert len(Path("p.jsonl").read_text().splitlines()) == 2
    assert (
        run(
            "tune",
            "--stream",
            "s.csv",
            "--master",
            "m.csv",
            "--on",
            "sku=code",
            "--formats",
            "sku=trim fold",
        )[0]
        == 0
    )


# ---- dimension and job


def job(tmp_path, stream=None, master=None, **values):
    return Job.load(
        {
            "name": "sales",
            "stream": {
                "format": "csv",
                "path": str(tmp_path / "in"),
                "id": ["id"],
                "max_unparsable": 1.0,
            }
            | (stream or {}),
            "master": {"name": "part", "max_rejected": 1.0} | (master or {}),
            "on": {"sku": "code"},
            "fact_table": "fact_sales",
        }
        | values
    )


@pytest.mark.parametrize("kind", ["path", "table"])
def test_a_dimension_s_keys_have_the_form_that_the_stream_declares(warehouse, tmp_path, kind):
    if kind == "path":
        place = tmp_path / "m.csv"
        place.write_text("code,since,name\n A,31/12/2020, x\nß,2020-12-31,y\nB ,01/01/2021,z\n")
    else:
        place = "raw_part"
        with warehouse.begin() as connection:
            connection.execute(
                text(
                    "CREATE TABLE raw_part (code VARCHAR(20), since VARCHAR(20), name VARCHAR(20))"
                )
            )
            connection.execute(
                text(
                    "INSERT INTO raw_part VALUES (' A', '31/12/2020', ' x'), "
                    "('c', '2020-12-31', 'y'), ('B ', '01/01/2021', 'z')"
                )
            )
    master = {kind: str(place), "formats": {"since": "%d/%m/%Y"}}
    mine = job(tmp_path, {"formats": {"sku": "trim fold"}}, master)
    result = provision(mine, warehouse)
    assert (result.inserted, result.reasons) == (2, {"unparsable": 1})
    with warehouse.connect() as connection:
        assert [
            tuple(r)
            for r in connection.execute(
                text("SELECT code, since, name FROM dim_part ORDER BY code")
            )
        ] in (
            [("a", date(2020, 12, 31), " x"), ("b", date(2021, 1, 1), "z")],
            [("a", "2020-12-31", " x"), ("b", "2021-01-01", "z")],
        )
        assert (
            connection.execute(text("SELECT detail FROM rejected_master"))
            .scalar()
            .endswith("since: '2020-12-31' is not DATE as %d/%m/%Y")
        )
    manifest, _ = publish(mine, warehouse, tmp_path / "snapshots")
    assert manifest.formats == {"code": {"trim": True, "case": "fold"}}
    assert provision(mine, warehouse).unchanged == 2
    with pytest.raises(ConfigError, match=r"formats of .*dim_part, .*\"trim\".*another name"):
        provision(job(tmp_path, {}, master), warehouse)


def test_a_load_of_messy_files_is_proven(spark, sqlite_load, tmp_path):
    paths = sqlite_load.paths
    (tmp_path / "in").mkdir()
    (tmp_path / "m.csv").write_text('code,price\n  Straße,"1.234,56 €"\nD,7 €\nE,1.2 €\n')
    write(tmp_path / "in", "csv", [*ROWS, ("0005", "-", "-1", "E"), ("6", "", "", "")])
    formats = FORMATS | {"id": {"zeros": 4}, "day": {"time": "%d/%m/%Y", "missing": "-"}}
    mine = job(
        tmp_path,
        {"formats": formats},
        {"path": str(tmp_path / "m.csv"), "formats": {"price": "1.234,56 €"}},
    )
    engine = connect(paths.warehouse_url)
    provision(mine, engine)
    publish(mine, engine, paths.snapshots)
    summary = sqlite_load.run(spark, mine)
    assert summary.rejected == {"unparsable": 2, "no_match": 2}
    assert sqlite_load.query("SELECT id, day, amount, sku, price FROM fact_sales ORDER BY id") == [
        ("0001", "2020-12-31", "1234.5", "strasse", "1234.56"),
        ("0004", "2021-01-02", "7.0", "d", "7.00"),
    ]
    told = sqlite_load.query("SELECT tuple FROM unmatched WHERE reason = 'unparsable'")
    assert any("as 1.234,56" in t for (t,) in told) and any("as %d/%m/%Y" in t for (t,) in told)
    proof = verify(sqlite_load, mine)
    assert proof.success, [(r.name, r.rows) for r in proof.results if not r.success]
    assert not [n for n in proof.notes if "not counted again" in n]
    rows = spark.createDataFrame([(1, " STRASSE "), (2, None), (3, "x")], "id INT, sku STRING")
    joined = join_dataframe(
        rows, paths.snapshots / "part" / "code", [("sku", "code")], columns=["price"]
    )
    assert [tuple(r) for r in joined.collect()] == [(1, "strasse", D("1234.56"))]
    # keys and ids go by their formats, from the load's beginning and in the snapshot
    with pytest.raises(SemistreamError, match=r"stream.formats.id.*must stay.*\"zeros\": 4"):
        sqlite_load.run(spark, job(tmp_path, {"formats": formats | {"id": "trim"}}))
    with pytest.raises(SemistreamError, match=r"stream.formats.sku.*master's snapshot part.*fold"):
        sqlite_load.run(spark, job(tmp_path))
