"""JSON values as they are written, against Python's own parser."""

import json
import string

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.files.inference import parse_type
from semistream.files.opening import SOURCES, open_source
from semistream.files.source import Reading

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(alphabet=st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(["a", "b", "ä", 'q"', "\\"])
OBJECTS = st.lists(st.dictionaries(NAMES, VALUES), max_size=12)
SPACE = st.sampled_from([None, 1, 4])


def read(path, text, columns):
    path.write_bytes(text.encode())
    schema = pa.schema([(c, pa.string()) for c in columns])
    source = SOURCES["json"]("stream", [], {c: pa.string() for c in columns}, Reading(), schema)
    chunks = list(source.read(path))
    return (
        [r for c in chunks for r in c.rows.to_pylist()],
        [r for c in chunks for r in c.rejected],
        [n for c in chunks for n in c.lines.tolist()],
    )


class Written(str):
    """A number as it is written."""


DECODER = json.JSONDecoder(parse_int=Written, parse_float=Written, parse_constant=Written)


def as_text(value):
    return value if value is None or isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize("block", [7, 64, 1 << 20])
@settings(max_examples=25)
@given(objects=OBJECTS, ascii_=st.booleans(), listed=st.booleans(), indent=SPACE)
def test_values_are_those_of_python(tmp_path_factory, block, objects, ascii_, listed, indent):
    texts = [json.dumps(o, ensure_ascii=ascii_, indent=indent) for o in objects]
    text = "[" + ",\n".join(texts) + "]" if listed else "\n".join(texts)
    path = tmp_path_factory.mktemp("json") / "a.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("semistream.files.text_source.BLOCK", block)
        rows, rejected, _ = read(path, text, ["a", "b", "ä", 'q"', "\\"])
    assert not rejected and len(rows) == len(objects)
    for row, whole in zip(rows, texts, strict=True):
        wanted = DECODER.decode(whole)
        for name, found in row.items():
            value = wanted.get(name)
            if isinstance(value, (list, dict)):
                assert DECODER.decode(found) == value
            else:
                assert found == as_text(value)


LINES = st.lists(st.text(alphabet='{}[]":,\\ab1-.eE \t' + "tru fals nul", max_size=14), max_size=6)


@settings(max_examples=150)
@given(lines=LINES)
def test_a_line_is_an_object_exactly_if_python_says_so(tmp_path_factory, lines):
    """Objects of one line; those over several lines begin with a brace alone, and are tried
    apart."""
    good, bad = [], 0
    for line in (line.strip() for line in lines):
        if not line:
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            good.append(line)
        else:
            bad += 1
    path = tmp_path_factory.mktemp("json") / "a.json"
    # closed by a line that ends whatever an object left open would take in
    text = "\n".join(part for line in lines for part in (line, "0"))
    if text.lstrip().startswith("["):
        return
    rows, rejected, _ = read(path, text, ["a"])
    assert len(rows) == len(good)
    assert len(rejected) == bad + len(lines)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("nul", "not JSON"),
        ("null", "not one JSON object"),
        ('{"a": 01}', "not JSON"),
        ('{"a": 1.}', "not JSON"),
        ('{"a": .5}', "not JSON"),
        ('{"a": +1}', "not JSON"),
        ('{"a": "\t"}', "not JSON"),
        ("{'a': 1}", "not JSON"),
        ('{"a": 1,}', "not JSON"),
        ('{"a": [1,]}', "not JSON"),
        ('{"a": {"b" 1}}', "not JSON"),
        ('{"a": 1} {"a": 2}', "not JSON"),
        ('{"a": "\\x"}', "a: half of a surrogate pair"),
        ('{"a": "\\ud800"}', "a: half of a surrogate pair"),
        ("[" * 600 + "]" * 600, "not one"),
        ('{"a": 1, "a": 2}', "a: it is there twice"),
        ('{"a": null, "a": 2}', "a: it is there twice"),
        ('{"a": ' + "[" * 600 + "]" * 600 + "}", "nested too deep"),
    ],
)
def test_why_a_line_is_no_object(tmp_path, line, why):
    rows, rejected, lines = read(tmp_path / "a.json", f'{{"a": 1}}\n\n{line}\n{{"a": 2}}\n', ["a"])
    assert rows == [{"a": "1"}, {"a": "2"}] and lines == [1, 4]
    assert [(r.line, r.text) for r in rejected] == [(3, line)]
    assert rejected[0].detail.startswith(why)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2"], "int64"),
        (["18446744073709551615"], "decimal(38,0)"),
        (["0.1", "1e5"], "double"),
        (["0.1", "9007199254740993"], "decimal(38,1)"),
        (['"2024-01-01"', "null"], "date"),
        (["true", "false"], "bool"),
        (["1", '"x"'], "string"),
        (['"1"', '"2"'], "string"),
        (["1", "true"], "string"),
        (["1.00000000000000000000000000000000000000001"], "string"),
        (['{"b": 9007199254740993.5}'], "string"),
    ],
)
def test_types_are_found_from_how_values_are_written(tmp_path, values, kind):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"x": {v}}}\n' for v in values))
    source = open_source("stream", path)
    assert source.schema.field("x").type == parse_type("x", kind)
    assert sum(c.rows.num_rows for c in source.chunks()) == len(values)


def test_nested_values_are_their_texts(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"id": 1, "x": {"a": [1, 2.50], "b": "q"}}\n{"id": 2, "x": null}\n'
        '{"id": 4,\n "x": [3,\n 4]}\n'
    )
    source = open_source("stream", path)
    assert source.schema.field("x").type == pa.string()
    assert [r["x"] for c in source.chunks() for r in c.rows.to_pylist()] == [
        '{"a": [1, 2.50], "b": "q"}',
        None,
        "[3,\n 4]",
    ]


def test_more_keys_than_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("semistream.files.json_source.MOST_KEYS", 20)
    monkeypatch.setattr("semistream.files.json_source.UNKNOWN", 3)
    lines = [
        json.dumps({**{f"{c}{i}": 1 for c in string.ascii_letters}, "id": i}) for i in range(20)
    ]
    (tmp_path / "a.json").write_text("\n".join(lines))
    rows, rejected, _ = read(tmp_path / "a.json", "\n".join(lines), ["id"])
    assert [r["id"] for r in rows] == [str(i) for i in range(20)] and not rejected
