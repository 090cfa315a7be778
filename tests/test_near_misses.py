"""Why keys match nothing: the forms in which they would, by plain loops, in the console and of a
large R."""

from __future__ import annotations

import re
import tempfile
import unicodedata
from collections.abc import Iterable
from contextlib import closing
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.column_format import formats
from semistream.files import near_misses as module
from semistream.files.formats import prepared
from semistream.files.near_misses import FORMS, SAMPLE, NearMisses, SampledKeys, near_misses
from semistream.joins.output import NO_MATCH, NULL_KEY
from semistream.master.publish import publish_snapshot
from semistream.master.snapshot import open_snapshot

NAMES = {
    "as integers": "fraction",
    "without leading zeros": "zeros",
    "in NFC": "unicode",
    "ignoring case": "case",
    "after trimming": "trim",
}
# texts that are alike in one form or another; the last is KELVIN SIGN
SIGNS = [*"aAbß01.- ", "é", "e\u0301", "\u00a0", "\u212a"]
TEXTS = st.lists(st.sampled_from(SIGNS), max_size=5).map("".join)


def written(text: str, forms: Iterable[str]) -> str:
    """A text in these forms, told by `NAMES`."""
    if "trim" in forms:
        text = text.strip()
    if "unicode" in forms:
        text = unicodedata.normalize("NFC", text)
    if "case" in forms:
        text = text.casefold()
        text = unicodedata.normalize("NFC", text) if "unicode" in forms else text
    if "fraction" in forms and (found := re.fullmatch(r"(-?[0-9]+)\.0+", text)):
        text = found[1]
    if "zeros" in forms and (found := re.fullmatch("0+([0-9]+)", text)):
        text = found[1]
    return text


def matching(keys: set[str], master: set[str], forms: Iterable[str]) -> set[str]:
    there = {written(m, forms) for m in master}
    return {key for key in keys if written(key, forms) in there}


def merged(master: set[str], forms: Iterable[str]) -> int:
    return len(master) - len({written(m, forms) for m in master})


def look(
    keys: dict[str, list], master: dict[str, list], on: list[str], **kwargs
) -> NearMisses | None:
    rows = pa.table(master)
    with tempfile.TemporaryDirectory() as root:
        publish_snapshot(rows.to_batches(), rows.schema, root, "m", on, **kwargs)
        with closing(open_snapshot(root)) as relation:
            return near_misses(pa.record_batch(keys), relation)


@given(keys=st.sets(TEXTS, min_size=1, max_size=30), master=st.sets(TEXTS, min_size=1, max_size=30))
@settings(max_examples=150)
def test_the_fewest_forms_that_keep_the_matches(keys, master):
    keys = keys - master
    every, apart = set(NAMES.values()), set()
    for form in reversed(NAMES.values()):
        apart |= {form} if not merged(master, {*apart, form}) else set()
    every = apart if matching(keys, master, apart) else every
    found = look({"k": sorted(keys)}, {"code": sorted(master)}, ["code"]) if keys else None
    most = len(matching(keys, master, every))
    if found is None:
        assert not most
        return
    forms = {NAMES[form.words] for form in found.forms["k"]}
    matches = matching(keys, master, forms)
    assert (found.keys, found.matches, found.rows) == (len(keys), len(matches), len(master))
    assert len(matches) >= 0.99 * most
    assert found.merged == merged(master, forms)
    if found.merged:
        (one,), (other,) = found.merging
        assert one != other and written(one, forms) == written(other, forms)
    assert all(len(matching(keys, master, forms - {form})) < 0.99 * most for form in forms)
    (key,), (of,) = found.example
    assert key in keys and of in master and written(key, forms) == written(of, forms)


@given(TEXTS)
def test_the_setting_that_is_told_gives_the_form(text):
    for form in FORMS:
        (setting,) = formats({"k": form.setting}).values()
        column, _ = prepared(pa.array([text]), setting, pa.array([], pa.string()))
        assert column.to_pylist() == [written(text, [NAMES[form.words]])]


@pytest.mark.parametrize(
    "key, of, said, declaration",
    [
        ("A ", "a", "after trimming and ignoring case", "{product: {trim: true, case: fold}}"),
        ("STRASSE", "Straße", "ignoring case", "{product: {case: fold}}"),
        ("7", "007", "without leading zeros", "{product: {zeros: strip}}"),
        ("7.0", "7", "as integers", "{product: {fraction: strip}}"),
        ("7.0", "007", "without leading zeros and as integers", None),
        ("e\u0301", "é", "in NFC", "{product: {unicode: NFC}}"),
    ],
)
def test_a_sentence_names_forms_an_example_and_the_setting(key, of, said, declaration):
    found = look({"product": [key, "x"]}, {"code": [of, "y"]}, ["code"])
    shown = ascii if "NFC" in said else repr
    assert str(found) == (
        f"of 2 unmatched keys 1 would match {said} in product, for instance {shown(key)} and "
        f"{shown(of)}"
    )
    assert declaration in (None, found.declaration)
    form = formats([found.flags.removeprefix("--formats '").removesuffix("'")])
    assert form == found.formats


def test_advice_that_merges_keys_of_the_master_data_says_so_and_one_that_does_not_comes_first():
    master = ["a4", "A4", "007", "7", *(f"b{i}" for i in range(90))]
    keys = [f"B{i}" for i in range(9)] + ["0012"]
    found = look({"k": keys}, {"code": master}, ["code"])
    assert found.declaration == "{k: {case: fold}}" and (found.merged, found.matches) == (1, 9)
    assert str(found).endswith(
        "; but 1 different key of the master data would become equal to another one, as 'a4' and "
        "'A4'"
    )
    found = look({"k": [*keys, "b5 "]}, {"code": master}, ["code"])
    assert found.declaration == "{k: {trim: true}}" and (found.merged, found.matches) == (0, 1)
    assert "become equal" not in str(found)


def test_a_form_that_the_key_has_is_kept_in_the_setting():
    found = look({"k": ["7 "]}, {"k": ["007"]}, ["k"], formats={"k": {"case": "fold", "zeros": 3}})
    assert found.declaration == "{k: {trim: true, case: fold, zeros: strip}}"


def test_of_a_composite_key_each_column_has_its_forms_and_the_rest_must_match():
    master = {
        "shop": ["north", "south"],
        "day": [date(2026, 1, 1), date(2026, 1, 2)],
        "code": ["7", "8"],
    }
    keys = {
        "store": [" north", " south", " south"],
        "sold": [date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 1)],
        "sku": ["007", "008", "008"],
    }
    found = look(keys, master, ["shop", "day", "code"])
    assert found.matches == 2 and found.keys == 3
    assert "after trimming in store and without leading zeros in sku" in str(found)
    assert found.declaration == "{store: {trim: true}, sku: {zeros: strip}}"
    keys["sold"] = [date(2027, 1, 1)] * 3
    assert look(keys, master, ["shop", "day", "code"]) is None


@pytest.mark.parametrize(
    "key", [pa.array([1, 2]), pa.array([b"A", b"B"]), pa.array([], pa.string())]
)
def test_keys_without_texts_have_no_other_form(key):
    assert look({"k": key}, {"k": pa.array(["a", "b"] if not len(key) else key)}, ["k"]) is None


def test_a_form_that_hardly_any_key_needs_is_not_told():
    keys = {"k": [f"x{i}" for i in range(999)] + ["A"]}
    assert look(keys, {"k": ["a", "b"]}, ["k"]) is None


def test_of_a_large_master_some_partitions_are_read(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 20_000)
    found = look(
        {"k": [f"KEY {i}" for i in range(SAMPLE)]},
        {"k": [f"key {i}" for i in range(100_000)]},
        ["k"],
    )
    assert 10_000 < found.rows <= 30_000 and 100 < found.matches < 400
    assert str(found).endswith(f"(of 100,000 master rows, {found.rows:,} were read)")


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_the_sample_is_of_all_of_the_stream_and_of_keys_only(size):
    sample, rows = SampledKeys(["k"], [1]), 30_000
    reasons = [NULL_KEY if i % 3 else NO_MATCH for i in range(rows)]
    unmatched = pa.table({"id": range(rows), "reason": range(rows), "why": reasons})
    for batch in unmatched.to_batches(size):
        sample.add(batch)
    keys = sample.keys().column(0).to_pylist()
    assert keys == sorted(set(keys)) and {i % 2 for i in keys} == {0, 1}
    assert SAMPLE / 4 < len(keys) <= 2 * SAMPLE and not any(i % 3 for i in keys)
    assert keys[0] < rows / 50 and keys[-1] > rows * 49 / 50
    assert SampledKeys(["k"], [1]).keys() is None


# ---- the console


@pytest.fixture
def console(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def console(stream: str, master: str, *flags: str) -> tuple[int, str, str]:
        Path("s.csv").write_text(stream)
        Path("m.csv").write_text(master)
        return run(
            "join", "--stream", "s.csv", "--master", "m.csv", "--on", "k", "--out", "o.csv", *flags
        )

    return console


def test_a_join_that_matches_nothing_says_so_and_why(console):
    stream, master = "k,x\nA ,1\nB ,2\n", "k,v\na,1\nb,2\n"
    code, out, _ = console(stream, master)
    assert code == 0
    assert "warning: 100.0% of the rows have no master row" in out
    flag = "--formats 'k={trim: true, case: fold}'"
    said = (
        "of 2 unmatched keys 2 would match after trimming and ignoring case in k, for instance "
        f"'A ' and 'a': {flag}"
    )
    assert f"warning: {said}" in out
    code, out, _ = console(stream, master, "--formats", "k={trim: true, case: fold}")
    assert code == 0 and "warning" not in out and "output rows" in out


def test_more_unmatched_rows_than_allowed_fail_and_leave_no_output(console):
    stream, master = "k,x\nA ,1\nb,2\n,3\nc,4\n", "k,v\na,1\nb,2\nc,3\n"
    code, _, err = console(stream, master, "--max-unmatched", "0.4")
    assert code == 1 and not Path("o.csv").exists()
    assert "2 of 4 rows have no master row" in err and "'A ' and 'a'" in err
    code, out, _ = console(stream, master, "--max-unmatched", "0.5")
    assert code == 0 and Path("o.csv").exists() and "no master row" not in out


def test_few_unmatched_keys_are_not_looked_into(console):
    stream = "k,x\n" + "".join(f"a,{i}\n" for i in range(99))
    assert "would match" not in console(stream + "A,1\n", "k,v\na,1\n")[1]
    assert "would match ignoring case" in console(stream + "A,1\n" * 10, "k,v\na,1\n")[1]


@pytest.mark.parametrize("master", ["k,v\n", "k,v\n,1\n"])
def test_master_data_without_a_row_are_refused(master, console, run):
    code, _, err = console("k,x\na,1\n", master)
    assert code == 2 and "'master' must have a row with a key" in err and "--allow-empty" in err
    assert not Path("o.csv").exists()
    code, out, _ = console("k,x\na,1\n", master, "--allow-empty")
    assert code == 0 and "warning: 100.0% of the rows" in out
    snapshot = ["snapshot", "--master", "m.csv", "--on", "k", "--out", "snap"]
    assert run(*snapshot)[0] == 2 and not list(Path("snap").glob("v*"))
    assert run(*snapshot, "--allow-empty")[0] == 0
    join = ["join", "--stream", "s.csv", "--snapshot", "snap", "--on", "k", "--out", "o.csv"]
    code, _, err = run(*join)
    assert code == 2 and "'snapshot' must have a row with a key" in err
    assert run(*join, "--allow-empty")[0] == 0


def test_a_dimension_without_a_row_is_refused_by_provision(run, tmp_path):
    (tmp_path / "product.csv").write_text("sku,price\n")
    job = tmp_path / "sales.yaml"
    job.write_text(
        "name: sales\nstream: {format: csv, path: in, columns: product STRING, id: [product]}\n"
        "master: {name: product, path: product.csv}\non: {product: sku}\nfact_table: fact_sales\n"
    )
    code, _, err = run("provision", job)
    assert code == 1 and "product.csv has no row" in err and "allow_empty: true" in err
    assert not list(tmp_path.glob("var/snapshots/product/*/v*"))
    job.write_text(job.read_text().replace("product.csv}", "product.csv, allow_empty: true}"))
    code, out, err = run("provision", job)
    assert code == 0 and "snapshot v000001: 0 rows" in out, err
