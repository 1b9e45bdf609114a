"""One thread or two for a rank, on a quiet host and a busy one: python benchmarks/threads.py [MODEL ...] [--runs 1].

``freshet-trainer run`` learns the first ``--snapshots`` of collegemsg, with the key ``threads`` and without any environment
variable. Seconds and processor seconds are those of training, without loading libraries; medians of ``--runs``. Busy is a host
with two more processes per core that do nothing but count. Nothing else may run beside the benchmark.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import harness

from freshet_graph.stream.decode.files import read_events

STRATEGIES = {"tgn-history": "sequential", "sage-linear": "vertex", "wdgcn": "whole", "tmgcn": "whole"}
"""By model."""
A_SNAPSHOT = 500
"""Events in it."""
OPENMP = ("OMP_", "GOMP_", "KMP_")


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes beside, each on as much of a core as it gets."""
    beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        harness.kill(*beside)


def trained(keys: dict[str, object]) -> tuple[float, float]:
    """Seconds of a run from its line ``training`` to its end, and of its processor."""
    import psutil

    with harness.scratch() as folder:
        fixed = {"lane": "hash", "checkpoint": f"{folder}/checkpoints", "metrics": {"port": 0}}
        config = str(harness.written(folder / "trainer.yaml", keys | fixed))
        command = [sys.executable, *harness.TRAINER, "run", "--config", config, "--until-idle", "0", "--json"]
        plain = {name: value for name, value in os.environ.items() if not name.startswith(OPENMP)}
        quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
        process = subprocess.Popen(command, stdout=quiet, stderr=pipe, text=True, env=plain)
        assert process.stderr is not None
        log, began, spent = "", 0.0, 0.0
        for line in process.stderr:
            log += line
            if not began and line.startswith('{"event": "training"'):
                began, spent = time.perf_counter(), sum(psutil.Process(process.pid).cpu_times()[:2])
        _, status, usage = os.wait4(process.pid, 0)
        harness.require(not status and began, f"{keys}\n{log[-2000:]}")
        return time.perf_counter() - began, usage.ru_utime + usage.ru_stime - spent


def store_of(folder: Path, data: Path, snapshots: int) -> Path:
    """A store of the first events, whose snapshots have equally many."""
    read = read_events(harness.existing(data))
    first = replace(read, events=read.events.sort_by("t").slice(0, snapshots * A_SNAPSHOT))
    return harness.built(folder, *harness.evened(first, A_SNAPSHOT), harness.lanes("hash", parts=1))


def main() -> None:
    data = harness.DATA / "collegemsg.parquet"
    given = harness.options(__doc__, {"models": list(STRATEGIES)}, data=data, snapshots=4, runs=1)

    def rows(store: Path) -> Iterator[list[str]]:
        for model in harness.chosen(given.models, STRATEGIES):
            for threads in (1, 2):
                own = {"model": model, "strategy": STRATEGIES[model], "threads": threads}
                cells = []
                for more in (0, 2 * (os.cpu_count() or 1)):
                    with busy(more):
                        took = [trained({**own, "store": str(store)}) for _ in range(given.runs)]
                    cells += [f"{median(column):.1f}" for column in zip(*took, strict=True)]
                yield [f"`{model}`", f"`{STRATEGIES[model]}`", str(threads), *cells]

    with harness.scratch() as folder:
        store = store_of(folder / "store", given.data, given.snapshots)
        harness.table(
            "model | strategy | threads | quiet, s | processor, s | busy, s | processor, s", rows(store)
        )


if __name__ == "__main__":
    main()
