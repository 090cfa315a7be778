"""Virtual environments of peers whose packages conflict with the project's own. Each is under
var/peers, and is created on first use from benchmarks/NAME/requirements.lock."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import ROOT, Unavailable

PEERS = ROOT / "var" / "peers"


def peer_environment(name: str, finish: Callable[[Path], None] | None = None) -> Path:
    """Return the directory of a peer's environment. The environment is created first if it does not
    match the lock file. finish: a function that adds everything that is needed besides the
    packages.

    Raises Unavailable if the environment cannot be installed.
    """
    home, lock = PEERS / name, ROOT / "benchmarks" / name / "requirements.lock"
    stamp, key = home / ".ready", hashlib.sha256(lock.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != key:
        print(f"# installing {name} into {home}", file=sys.stderr, flush=True)
        try:
            run("uv", "venv", "-q", "--clear", "--python", sys.executable, home)
            run(
                "uv",
                "pip",
                "install",
                "-q",
                "--python",
                home / "bin" / "python",
                "--require-hashes",
                "-r",
                lock,
            )
            if finish is not None:
                finish(home)
        except (OSError, subprocess.CalledProcessError) as e:
            output = getattr(e, "stderr", None) or str(e)
            raise Unavailable(f"{name} cannot be installed: {output.strip()[-500:]}") from None
        stamp.write_text(key)
    return home


def run(*command: str | Path) -> None:
    subprocess.run(
        [str(c) for c in command],
        check=True,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
