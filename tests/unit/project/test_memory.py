"""What a job frees it uses again."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np, pyarrow as pa
from freshet_graph.stream.service.memory import keep_memory
from freshet_graph.trainer.commands.ranks import in_ranks

def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        np.ones(4 << 20, np.uint8), pa.array(np.arange(1 << 19), mask=np.zeros(1 << 19, bool))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def work():
    faults(3)
    print(pa.default_memory_pool().backend_name, faults(100))

"""
OF_THE_STREAM = "keep_memory()\nwork()"
OF_A_RANK = "in_ranks(None, work)"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
@pytest.mark.parametrize("start", [OF_THE_STREAM, OF_A_RANK], ids=["stream", "trainer"])
def test_freed_buffers_are_used_again(start):
    done = subprocess.run([sys.executable, "-c", PROGRAM + start], check=True, capture_output=True, text=True)
    pool, faults = done.stdout.split()
    assert pool == "system"
    assert int(faults) < 1_000  # each round takes 3,000 pages
