"""Text files: the types of their columns, and what is malformed in them."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import JOIN, put, table, write
from semistream.files import source, text_source
from semistream.files.csv_source import CsvSource
from semistream.files.opening import open_source
from semistream.files.records import split_records


def test_malformed_csv_rows_are_unparsable_and_cost_only_themselves(join):
    Path("s.csv").write_bytes(
        b'id,k,when\n1,a,2024-01-01\n2,b\n3,a,b,c\n4,"a,2024-01-01\n5,"a"x,2024-01-01\n'
        b'6,a,yesterday\nx,a,2024-01-01\n7,\xff,2024-01-01\n8,"a",2024-01-02\n\n9,,2024-01-03\n'
        b'10,5" pipe,NA\n'
    )
    write("m.csv", "k,v\na,1\nb,2\na,2,3\n")
    stats = join(
        "--types", "id=int64", "--types", "when=date", unmatched="bad.parquet", join_type="left"
    )
    assert stats["unmatched"] == {"unparsable": 7, "null_key": 1, "no_match": 1}
    assert stats["rows_read"] == 11 and stats["matched"] == 2
    assert stats["master_rejected"] == {"unparsable": 1}


def test_types_are_told(join):
    put("id,k,d,p\n1,7,2024-01-01,1.10\n2,x,2024-01-01,2\n3,8,bad,3.999\n", "k,v\n7,1\n8,2\n")
    code_stats = join(
        "--types",
        "k=int64",
        "--types",
        "d=date",
        "--types",
        "p=decimal(10,2)",
        unmatched="bad.jsonl",
    )
    assert code_stats["unmatched"] == {"unparsable": 2}
    assert table("out.parquet").schema.types[1:4] == [pa.int64(), pa.date32(), pa.decimal128(10, 2)]
    bad = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert [(b["reason"], b["detail"], b["text"]) for b in bad] == [
        ("unparsable", "s.csv, line 3: k: 'x' is not BIGINT", "2,x,2024-01-01,2"),
        ("unparsable", "s.csv, line 4: d: 'bad' is not DATE", "3,8,bad,3.999"),
    ]
    assert "'x' is not BIGINT" in code_stats["examples"][0]


def test_malformed_json_lines_are_unparsable(join):
    Path("s.jsonl").write_bytes(
        b'\xef\xbb\xbfnull\n{"k": 1, "t": "2024-01-01"}\nnonsense\n{"k": '
        b'2}\n\n[1]\n{"k": "x"}\n{"k": 1}{"k": 2}\n{"k": 1, "t": '
        b'"\xff"}\n{"k": 2.5}\n{"k": null, "t": "2024-05-05"}\r\n'
    )
    write("m.csv", "k,v\n1,a\n2,b\n")
    stats = join(stream="s.jsonl", types="k=int64", unmatched="bad.parquet")
    assert stats["rows_read"] == 10 and stats["matched"] == 2
    assert stats["unmatched"] == {"unparsable": 7, "null_key": 1}
    assert table("out.parquet").schema.field("t").type == pa.date32()
    bad = table("bad.parquet").filter(pc.field("reason") == "unparsable")
    assert "nonsense" in bad.column("text").to_pylist()
    details = bad.column("detail").to_pylist()
    assert [d.split(":")[0] for d in details] == [
        f"s.jsonl, line {n}" for n in (1, 3, 6, 7, 8, 9, 10)
    ]
    assert not [d for d in details if "row 0" in d]


def test_json_fields_that_the_first_lines_lack_are_counted(join, monkeypatch):
    monkeypatch.setattr("semistream.files.source.SAMPLE", 1)
    monkeypatch.setattr("semistream.files.text_source.BLOCK", 16)
    write("s.jsonl", '{"k": 1}\n{"k": 1, "new": 2}\n')
    write("m.csv", "k,v\n1,a\n")
    assert join(stream="s.jsonl")["ignored_fields"] == {"new": 1}


def test_null_values(join):
    put("id,k,n\n1,NA,NA\n2,a,5\n3,-,\n", "k,v\na,1\nNA,2\n")
    assert join()["matched"] == 2  # a string NA is a value, a number NA is not
    assert table("out.parquet").schema.field("n").type == pa.int64()
    stats = join(null_values="NA,-")
    assert stats["matched"] == 1 and stats["unmatched"] == {"null_key": 2}
    assert stats["master_rejected"] == {"null_key": 1}


def test_types_found(run):
    write(
        "t.csv",
        "i,zip,big,f,b,d,t,z,s,e\n1,007,99999999999999999999,1e3,true,2024-01-01,2024-01-01 "
        "10:00:00,2024-01-01T10:00:00Z,0x1F,\n-5,100,1,.5,False,NA,2024-01-01,,5,\n",
    )
    kinds = {f.name: f.type for f in open_source("stream", Path("t.csv")).schema}
    assert kinds == {
        "i": pa.int64(),
        "zip": pa.string(),
        "big": pa.string(),
        "f": pa.float64(),
        "b": pa.bool_(),
        "d": pa.date32(),
        "t": pa.timestamp("us"),
        "z": pa.timestamp("us", "UTC"),
        "s": pa.string(),
        "e": pa.null(),
    }


@pytest.mark.parametrize(
    "stream, master, rows",
    [
        ("k,x\n", "k,v\n1,a\n", 0),
        ("k,x\n1,2\n", "k,v\n", 1),
        ("k,x\n", "k,v\n", 0),
        ("k,x\n,\n,\n", "k,v\nabc,1\n", 2),
        ("k\n1\n\n3", "k,v\n3,x\n", 3),
    ],
)
def test_files_without_rows(stream, master, rows, join):
    put(stream, master)
    stats = join("--allow-empty", join_type="left")
    assert stats["rows_read"] == rows == table("out.parquet").num_rows


def test_empty_files(run, join):
    write("s.jsonl", "")
    write("m.csv", "k,v\n1,a\n")
    assert join(stream="s.jsonl")["rows_read"] == 0
    assert table("out.parquet").schema.names == ["k", "v"]
    write("s.csv", "")
    code, _, err = run(*JOIN, "o.csv")
    assert code == 2 and "header line" in err and not Path("o.csv").exists()


def test_compressed_files_and_directories(join):
    Path("parts").mkdir()
    for i in range(3):
        Path(f"parts/{i}.csv.gz").write_bytes(gzip.compress(f"k,x\n{i},a\n{i + 1},b\n".encode()))
    write("parts/_SUCCESS", "")
    write("m.tsv", "k\tv\n1\tone\n")
    assert join(stream="parts", master="m.tsv")["matched"] == 2


def test_blocks_of_any_size_give_the_same_rows(run, monkeypatch):
    rows = [[str(i), "a\nb" if i % 3 == 0 else 'q"x', "" if i % 5 else "ü,é"] for i in range(40)]
    text = io.StringIO()
    csv.writer(text).writerows([["id", "t", "u"], *rows])
    Path("t.csv").write_bytes(text.getvalue().encode())
    for block in (1, 2, 3, 7, 64, 10_000):
        monkeypatch.setattr("semistream.files.text_source.BLOCK", block)
        source = open_source("stream", Path("t.csv"), types={"id": "string"})
        chunks = list(source.chunks())
        assert not any(c.rejected for c in chunks)
        assert [
            [r[n] or "" for n in ("id", "t", "u")] for c in chunks for r in c.rows.to_pylist()
        ] == rows


@given(
    st.lists(
        st.lists(st.text(st.sampled_from('ab,"\n\r 1'), max_size=4), min_size=2, max_size=2),
        min_size=1,
        max_size=8,
    )
)
def test_records_are_those_of_the_csv_module(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    data = np.frombuffer(text.getvalue().encode(), np.uint8)
    found = split_records(data, ord(","), ord('"'), -1, True, False)
    assert found.fields.tolist() == [2] * len(rows) and found.consumed == len(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_without_a_crash_and_without_loss(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(b"a,b\n" + data)
    source = open_source("stream", path)
    source.assign_types()
    read = sum(c.rows.num_rows + len(c.rejected) for c in source.chunks())
    lines = [line for line in data.replace(b"\r", b"\n").split(b"\n") if line]
    assert read == len(lines) if b'"' not in data else read <= len(lines)


def test_a_stray_quote_far_from_the_next_one_costs_one_row(join, monkeypatch):
    monkeypatch.setattr("semistream.files.text_source.BLOCK", 1 << 16)
    put('k,t\n1,a\n2,"a\n' + "3,b\n" * 500_000, "k,v\n3,x\n")
    stats = join()
    assert stats["matched"] == 500_000 and stats["unmatched"] == {"unparsable": 1, "no_match": 1}


def test_the_only_file_is_parsed_once_although_its_types_are_inferred_first(tmp_path, monkeypatch):
    monkeypatch.setattr(text_source, "BLOCK", 1000)
    parsed, parse = [], CsvSource._arrow

    def counted(self, names, delimiter, text, rows):
        parsed.append(rows)
        return parse(self, names, delimiter, text, rows)

    monkeypatch.setattr(CsvSource, "_arrow", counted)
    monkeypatch.setattr(source, "SAMPLE", 10_000)
    (tmp_path / "s.csv").write_text("k,v\n" + "".join(f"{i},{i / 4}\n" for i in range(3000)))
    opened = open_source("stream", tmp_path / "s.csv")
    sampled = len(parsed)
    assert 2 < sampled < 20
    progress, found = [], []
    for chunk in opened.chunks():
        progress.append(opened.bytes_done)
        found += chunk.rows.to_pylist()
    assert found == [{"k": i, "v": i / 4} for i in range(3000)]
    assert sum(parsed) == 3000 and progress[0] <= 1000 and progress == sorted(progress)
    # again, from the file
    assert [row for chunk in opened.chunks() for row in chunk.rows.to_pylist()] == found
    assert sum(parsed) == 6000
