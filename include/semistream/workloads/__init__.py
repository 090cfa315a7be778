"""Jobs: the shipped ones, the user's own, and the preparation of their data."""

from semistream.workloads.jobs import load_job, prepare
from semistream.workloads.zipf import ZipfKeys

__all__ = ["ZipfKeys", "load_job", "prepare"]
