"""A live topic, several ranks, and ranks killed all the time: python benchmarks/live_ranks.py --strategy snapshot.

A real broker, a producer, ``freshet-stream run`` with a snapshot per second, and ``freshet-trainer run --ranks 2`` (or
``--torchrun``), all started as users start them. Beside the stream one rank at a time is killed with -9 at a random moment; its
launcher starts all ranks again. For the last tenth of the snapshots one rank continues alone. Asserted:

- every snapshot that was sealed was scored, once and in order, and none is left when the producer has ended;
- every figure of those that the ranks scored equals that of a run of as many ranks over the finished store that nothing disturbs;
- every event that was sent is in the log, and ``freshet-stream verify`` finds no fault;
- memory of all processes of the trainer is flat while ranks run. Samples of a start that a kill caused are left out.

``--model`` and ``--params`` (JSON, of the strategy) replace those of the table below; ``--keep`` is a folder to work in and to
leave.
"""

import contextlib
import json
import random
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import require
from live import PARTITIONS, TOPIC, producing, stream_keys

STRATEGIES: dict[str, dict[str, Any]] = {
    "pac": {
        "model": "tgn-history",
        "lane": "sep",
        "model_params": {},
        "strategy_params": {"shuffle_every": 4},
    },
    "snapshot": {"model": "cdgcn", "window": 6, "strategy_params": {"blocks": 2}},
    "vertex": {"model": "sage-linear", "window": 4},
    "group": {"model": "wdgcn", "window": 4, "horizon": 8},
    "hybrid": {"model": "tgcn", "window": 4, "horizon": 8, "strategy_params": {"average": "delayed"}},
    "whole": {"model": "tgcn", "window": 4},
}
"""Keys of the trainer's configuration; ``whole`` on one rank is the run to compare with."""
FIGURES = (
    "sequence", "tau", "ap", "auc", "mrr", "loss", "recency_ap", "random_ap", "steps", "trained", "discarded",
)  # fmt: skip
"""Keys of a line of scores that must not depend on kills."""
STARTS_S = 25.0
"""Within this time after a kill ranks import their libraries and load a checkpoint."""


def trainer(folder: Path, name: str, ranks: int, given: Any, *more: str) -> Any:
    """Start it; NAME has its checkpoints."""
    usual = STRATEGIES[given.strategy]
    keys = {
        "store": str(folder / "store"), "strategy": given.strategy,
        **({"lane": "hash", "model_params": {"hidden": 32}} | usual),
        "strategy_params": {**usual.get("strategy_params", {}), **given.params}, "optimisation": {"epochs": 1},
        "checkpoint": str(folder / name), "metrics": {"port": 0}, **({"model": given.model} if given.model else {}),
    }  # fmt: skip
    torchrun = (
        "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--monitor-interval=0.2",
        f"--max-restarts={given.kills + 5}", f"--log-dir={folder / name}-ranks",
    )  # fmt: skip
    if given.torchrun:
        return harness.service(folder, f"trainer-{name}", keys, *more, "--json", run=torchrun)
    return harness.service(folder, f"trainer-{name}", keys, "--ranks", str(ranks), *more, "--json")


def kill_again_and_again(folder: Path, trainer: Any, given: Any) -> tuple[list[float], int]:
    """Until nine tenths of the snapshots are scored: MiB of the trainer's processes, and how many kills there were."""
    draws, samples, killed = random.Random(given.seed), list[float](), 0
    last = 9 * given.snapshots // 10
    moments = sorted(draws.sample(range(3, last - 10), given.kills))
    growing_until = time.monotonic() + STARTS_S
    deadline = time.monotonic() + given.snapshots + harness.PATIENCE_S
    while (done := harness.scored(folder / "live")) < last:
        runs = trainer.poll() is None and time.monotonic() < deadline
        require(
            runs,
            f"the trainer stands after {done} snapshots:\n{(folder / 'trainer-live.log').read_text()[-4000:]}",
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


def run(folder: Path, bootstrap: str, given: Any) -> None:
    harness.topics(bootstrap, PARTITIONS, TOPIC)
    producer, sent = producing(bootstrap, given.rate, float(given.snapshots))
    name = STRATEGIES[given.strategy].get("lane", "hash")
    parts = (
        3 * given.ranks if name == "sep" else given.ranks
    )  # which pac combines into as many as there are ranks
    lane = {"name": name, "parts": parts, "edge_life": 20}
    processes = [harness.service(folder, "stream", stream_keys(folder, bootstrap, 1.0, lane))]
    try:
        harness.address_of(processes[0], folder / "stream.log")
        producer.start()
        processes.append(trainer(folder, "live", given.ranks, given))
        samples, killed = kill_again_and_again(folder, processes[-1], given)
        code = harness.ended(processes[-1])
        codes = [0 if given.torchrun else code]  # torchrun ends with 1 when it is terminated
        by_ranks = harness.scored(folder / "live")
        processes.append(trainer(folder, "live", 1, given, "--until-idle", "20"))
        producer.join()
        codes += [processes[-1].wait(harness.PATIENCE_S), harness.ended(processes[0])]
        processes.append(trainer(folder, "straight", given.ranks, given, "--until-idle", "0"))
        codes.append(processes[-1].wait(given.snapshots + harness.PATIENCE_S))
    finally:
        harness.kill(*processes)
    check(folder, samples, killed, by_ranks, sent.value, codes, given)


def check(
    folder: Path, samples: list[float], killed: int, by_ranks: int, sent: int, codes: list[int], given: Any
) -> None:
    from freshet_graph.stream.store.log.reader import LogReader
    from freshet_graph.trainer.continual.drift import weighted_mean
    from freshet_graph.trainer.continual.journal import ScoreFile

    lines, straight = (ScoreFile(folder / name).lines() for name in ("live", "straight"))
    sealed = len(LogReader(folder / "store").snapshots)
    live, calm = (
        [[line.get(key) for key in FIGURES] for line in each[:by_ranks]] for each in (lines, straight)
    )
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
    require(by_ranks > 0 and live == calm, "figures differ from those of an undisturbed run")
    require(flat, "memory is not flat")


def main() -> None:
    given = harness.options(
        __doc__, strategy={"choices": list(STRATEGIES), "default": "snapshot"}, model="", ranks=2, snapshots=520, kills=20,
        params={"type": json.loads, "default": {}}, rate=200, seed=7, torchrun=False, keep={"type": Path},
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        folder = given.keep or stack.enter_context(harness.scratch())
        run(folder, stack.enter_context(harness.broker(folder / "kafka")), given)


if __name__ == "__main__":
    main()
