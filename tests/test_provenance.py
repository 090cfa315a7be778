"""What a measurement says of the source tree."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks import provenance


@pytest.mark.parametrize(("changed", "dirty"), [
    ("code.py", True), ("benchmarks/harness.py", True), ("benchmarks/results/a.txt", False),
    ("docs/a.md", False), ("README.md", False)])
def test_results_and_pages_are_no_change_of_the_code(tmp_path, monkeypatch, changed, dirty):
    monkeypatch.setattr(provenance, "HERE", tmp_path / "code")
    (tmp_path / "code").mkdir()
    file = tmp_path / changed
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("a")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "a"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    assert not provenance.commit()["dirty"]
    file.write_text("b")
    assert provenance.commit()["dirty"] == dirty
