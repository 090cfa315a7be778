"""What a measurement says of the source tree."""

from __future__ import annotations

import subprocess

from benchmarks import provenance


def test_results_and_pages_are_no_change_of_the_code(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "HERE", tmp_path)
    code, others = (
        ("code.py", "benchmarks/harness.py"),
        (
            "benchmarks/results/a.jsonl",
            "benchmarks/results/experiments/a.csv",
            "docs/a.md",
            "README.md",
        ),
    )
    for name in (*code, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "a"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    for name in others:
        (tmp_path / name).write_text("b")
    assert not provenance.commit()["dirty"]
    for name in code:
        (tmp_path / name).write_text("b")
        assert provenance.commit()["dirty"]
        (tmp_path / name).write_text("a")
