"""A live topic, several ranks, and ranks killed all the time: python benchmarks/live_ranks.py --strategy snapshot.

A real broker, a producer, ``freshet-stream run`` with a snapshot per second, and ``freshet-trainer run --ranks 2``, all started
as users start them. Beside the stream one rank at a time is killed with -9 at a random moment; its launcher starts all ranks
again. For the last tenth of the snapshots one rank continues alone. Asserted:

- every snapshot that was sealed was scored, once and in order, and none is left when the producer has ended;
- every event that was sent is in the log, and ``freshet-stream verify`` finds no fault;
- memory of all processes of the trainer is flat while two ranks run. Samples of a start that a kill caused are left out;
- with ``hybrid``, rank 0 serves every series that the dashboard's panels about hybrid batches ask for (they are printed).

``--model`` and ``--params`` (JSON, of the strategy) replace those of the table below; ``--port`` is of rank 0's metrics;
``--keep`` is a folder to work in and to leave.
"""

import contextlib
import json
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import require
from live import PARTITIONS, TOPIC, producing, stream_keys

STRATEGIES: dict[str, dict[str, Any]] = {
    "snapshot": {"model": "cdgcn", "window": 6, "strategy_params": {"blocks": 2}},
    "vertex": {"model": "sage-linear", "window": 4},
    "group": {"model": "wdgcn", "window": 4, "horizon": 8},
    "hybrid": {
        "model": "tgcn",
        "window": 4,
        "horizon": 8,
        "strategy_params": {"adjuster": "dqn", "steps": 0, "seconds_per_snapshot": 0.2},
    },
    "whole": {"model": "tgcn", "window": 4},
}
"""Keys of the trainer's configuration; ``whole`` on one rank is the run to compare with."""
DASHBOARD = harness.ROOT / "deploy" / "grafana" / "dashboards" / "freshet.json"
ONLY_HYBRID = re.compile(
    r"freshet_trainer_(?:batch_size|(?:adjuster|reservoir|generator|averages|divergence)_\w+)"
)
STARTS_S = 25.0
"""Within this time after a kill ranks import their libraries and load a checkpoint."""


def trainer_keys(folder: Path, given: Any) -> dict[str, Any]:
    usual = STRATEGIES[given.strategy]
    return {
        "store": str(folder / "store"),
        "lane": "hash",
        "strategy": given.strategy,
        **usual,
        "strategy_params": {**usual.get("strategy_params", {}), **given.params},
        **({"model": given.model} if given.model else {}),
        "model_params": {"hidden": 32},
        "optimisation": {"epochs": 1},
        "checkpoint": str(folder / "checkpoints"),
        "metrics": {"port": given.port},
    }


def kill_again_and_again(folder: Path, trainer: Any, given: Any) -> tuple[list[float], int]:
    """Until nine tenths of the snapshots are scored: MiB of the trainer's processes, and how many kills there were."""
    draws, samples, killed = random.Random(given.seed), list[float](), 0
    last = 9 * given.snapshots // 10
    moments = sorted(draws.sample(range(3, last - 10), given.kills))
    growing_until = time.monotonic() + STARTS_S
    deadline = time.monotonic() + given.snapshots + harness.PATIENCE_S
    while (done := harness.scored(folder / "checkpoints")) < last:
        runs = trainer.poll() is None and time.monotonic() < deadline
        require(
            runs,
            f"the trainer stands after {done} snapshots:\n{(folder / 'trainer.log').read_text()[-4000:]}",
        )
        alive, now = harness.children_of(trainer), time.monotonic()
        if moments and done >= moments[0] and len(alive) == given.ranks and now > growing_until - 15:
            moments.pop(0)
            time.sleep(draws.uniform(0, 0.9))
            with contextlib.suppress(Exception):  # it has just ended
                draws.choice(alive).kill()
                killed += 1
            growing_until = time.monotonic() + STARTS_S
        elif now > growing_until:
            samples.append(harness.memory_mib(trainer)[0])
        time.sleep(1.0)
    return samples, killed


def series_of_hybrid(port: int) -> dict[str, float | None]:
    """The value of each series that panels about hybrid batches ask for; None if rank 0 has no such series."""
    found = harness.scraped(f"http://127.0.0.1:{port}/metrics")
    return {name: found.get(name) for name in sorted(set(ONLY_HYBRID.findall(DASHBOARD.read_text())))}


def run(folder: Path, bootstrap: str, given: Any) -> None:
    harness.topics(bootstrap, PARTITIONS, TOPIC)
    producer, sent = producing(bootstrap, given.rate, float(given.snapshots))
    keys = trainer_keys(folder, given)
    lane = {"parts": given.ranks, "edge_life": 20}
    job = harness.service(folder, "stream", stream_keys(folder, bootstrap, 1.0, lane))
    processes, series = [job], {}
    try:
        harness.address_of(job, folder / "stream.log")
        producer.start()
        processes.append(harness.service(folder, "trainer", keys, "--ranks", str(given.ranks), "--json"))
        samples, killed = kill_again_and_again(folder, processes[-1], given)
        if given.strategy == "hybrid":
            series = series_of_hybrid(given.port)
        codes = [harness.ended(processes[-1])]
        print(f"{harness.scored(folder / 'checkpoints')} snapshots scored by all ranks", file=sys.stderr)
        (folder / "trainer.log").rename(folder / "trainer.of-ranks.log")
        alone = harness.service(folder, "trainer", keys, "--ranks", "1", "--until-idle", "20", "--json")
        processes.append(alone)
        producer.join()
        codes += [alone.wait(harness.PATIENCE_S), harness.ended(job)]
    finally:
        harness.kill(*processes)
    for name, value in series.items():
        print(f"{name} {value}")
    check(folder, samples, killed, sent.value, codes, given)
    require(None not in series.values(), "a panel asks for a series that rank 0 does not serve")


def check(folder: Path, samples: list[float], killed: int, sent: int, codes: list[int], given: Any) -> None:
    from stream.store.log.reader import LogReader
    from trainer.continual.drift import weighted_mean
    from trainer.continual.journal import ScoreFile

    lines, sealed = ScoreFile(folder / "checkpoints").lines(), len(LogReader(folder / "store").snapshots)
    in_log, lags = harness.events_in(folder / "store"), [line["lag"] for line in lines]
    quarters = (weighted_mean(list(part), "ap", "scored") for part in np.array_split(np.array(lines), 4))
    print(f"{given.strategy}: {killed} kills; {sealed} snapshots sealed, {len(lines)} scored; "
          f"behind: {np.median(lags):.0f} in the median, {max(lags)} at most, {lags[-1]} at the end")  # fmt: skip
    print(f"{sent:,} events sent, {in_log:,} in the log; the services ended with {codes}; "
          f"AP by quarters {', '.join(f'{each:.3f}' for each in quarters)}")  # fmt: skip
    flat = harness.is_flat("trainer", samples)
    harness.child(*harness.STREAM, "verify", folder / "store")
    require(killed == given.kills and not any(codes), f"{killed} kills, exit codes {codes}")
    require(
        [line["sequence"] for line in lines] == list(range(sealed)) and lags[-1] == 0,
        "not all is scored once",
    )
    require(in_log == sent > 0, "events were lost")
    require(flat, "memory is not flat")


def main() -> None:
    given = harness.options(
        __doc__, strategy={"choices": list(STRATEGIES), "default": "snapshot"}, model="", ranks=2, snapshots=520, kills=20,
        params={"type": json.loads, "default": {}}, rate=200, seed=7, port=19180, keep={"type": Path},
    )  # fmt: skip
    harness.begin()
    with contextlib.ExitStack() as stack:
        folder = given.keep or stack.enter_context(harness.scratch())
        run(folder, stack.enter_context(harness.broker(folder / "kafka")), given)


if __name__ == "__main__":
    main()
