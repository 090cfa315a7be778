"""The meaning of a Spark app's master for its driver. This module does not need Spark."""

from __future__ import annotations

import os
import re

LOOPBACK = "127.0.0.1"


def is_local(master: str) -> bool:
    """Return whether the driver runs its tasks itself, so that no other machine has to connect to
    it."""
    return re.match(r"local(\[|$)", master) is not None


def local_environment(master: str) -> dict[str, str]:
    """Return environment variables for spark-submit that make a local driver and its UI listen on
    the loopback interface only."""
    return (
        {"SPARK_LOCAL_IP": LOOPBACK}
        if is_local(master) and "SPARK_LOCAL_IP" not in os.environ
        else {}
    )
