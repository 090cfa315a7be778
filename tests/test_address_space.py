"""What the system refuses to give an operator is told as a wrong setting, with one that works."""

import subprocess
import sys

import pytest

PROGRAM = """
import re
import resource

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.joins import arena
from semistream.master.memory import MemoryRelation
from semistream.sizing import open_join

arena.Region.wanted = {passed_on}
master = pa.table({{"k": np.arange(1000), "text": [str(n) for n in range(1000)]}})
stream = pa.record_batch({{"k": np.arange(2000), "note": [str(n) for n in range(2000)]}})


def joined(memory):
    join = open_join("{algorithm}", memory=memory, stream=stream.schema, on=[("k", "k")],
                     master=MemoryRelation("r", master, ["k"], 64))
    return sum(o.joined.num_rows for outputs in (join.process(stream), join.drain())
               for o in outputs)


assert joined(10**6) == 1000
resource.setrlimit(resource.RLIMIT_AS, (8 * 10**9, resource.RLIM_INFINITY))
try:
    joined(30 * 10**9)
except ConfigError as e:
    refusal = str(e)
print(refusal)
most, = re.findall("at most ([0-9,]+) bytes", refusal)
assert joined(int(most.replace(",", ""))) == 1000
print(most)
"""


@pytest.mark.parametrize("passed_on", [False, True])
@pytest.mark.parametrize("algorithm", ["elevatorjoin", "hybridjoin", "meshjoin"])
def test_a_refusal_says_how_much_there_is_and_what_to_give(algorithm, passed_on):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(algorithm=algorithm, passed_on=passed_on)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    refusal, most = done.stdout.splitlines()
    assert "'memory' must be less: the system refuses an array of " in refusal
    assert "a process may have 8,000,000,000 bytes here" in refusal
    assert int(most.replace(",", "")) > 500_000_000
