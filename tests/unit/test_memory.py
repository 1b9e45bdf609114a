"""What a job frees it uses again."""

import subprocess
import sys

PROGRAM = """
import resource
import numpy as np, pyarrow as pa
from stream.service.memory import keep_memory

def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        np.ones(4 << 20, np.uint8), pa.array(np.arange(1 << 19), mask=np.zeros(1 << 19, bool))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if not keep_memory():
    print("not glibc")
else:
    faults(3)
    print(pa.default_memory_pool().backend_name, faults(100))
"""


def test_freed_buffers_are_used_again():
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    if done.stdout.strip() == "not glibc":  # which alone can be told
        return
    pool, faults = done.stdout.split()
    assert pool == "system"
    assert int(faults) < 1_000  # each round takes 3,000 pages
