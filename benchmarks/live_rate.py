"""The highest rate of events that the trainer follows: python benchmarks/live_rate.py [--data FILE] [MODEL:STRATEGY:RANKS …].

``freshet-trainer run`` is started as users start it, with the defaults of everything, one thread per rank: every event is
predicted, baselines and figures included, then learned, written down and checkpointed. It keeps up while it is never behind by
more than one snapshot: when it has done one, at most one waits. The first fifth of the events is left out.

The rate is found in two steps. First a store with all snapshots is learned as fast as it goes, which gives the seconds of each
snapshot, from one line of scores to the next. If a snapshot of n events is sealed n/R seconds after the one before, and each is
taken when it is sealed and the one before is done, it follows from these seconds when each is done at rate R, and R is bisected.
Then the run is made live at that rate: this process seals one snapshot after the other into a new store, with its lane, while
the trainer follows it. A rate at which it falls behind is lowered by a twentieth and tried again. ``--dry`` leaves the second
step out.

The table has the highest rate that was held, that of learning as fast as it goes, the shares of scoring, training and the rest
of the time in the first step, and the AP of whole snapshots. ``--all`` adds runs with ``scoring: {sample: all}`` of each event
model; ``--keys`` is more of the configuration, YAML.

Beside them in the same run, if ``torch_geometric`` is installed: a plain loop over the same events with its building blocks
(TGN of the same widths), which in batches of 200 predicts with one negative each, Recency and EdgeBank beside, and learns. Its
rate follows from the seconds of as many of its batches as make a snapshot, in the same way. It learns between the batches of a
snapshot and draws negatives of its own, so its AP is printed apart.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import yaml
from harness import child, evened, require

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.store import LogHeader
from freshet_graph.stream.decode.files import EventFile, read_events
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.trainer.continual.drift import weighted_mean
from freshet_graph.trainer.continual.journal import ScoreFile

ROWS = [
    "tgn-history:sequential:1", "tgn-history:pac:2", "tgn:sequential:1", "tgn:pac:2", "sage-linear:vertex:1",
    "sage-linear:vertex:2", "tgcn:whole:1", "tgcn:snapshot:1", "tgcn:snapshot:2", "tgcn:group:1", "tgcn:group:2",
    "sage-linear:hybrid:1", "sage-linear:hybrid:2",
]  # fmt: skip
BATCH = 200
LEFT_OUT = 0.2
"""Of the events, in front: what is compiled and imported once, and weights that are young."""
BEHIND = 1
"""Snapshots that may wait when one is done."""
LOWER, TRIES = 0.95, 6
"""The rate after one that was not held, over that one."""
LANE = Lane(name="hash", algorithm="hash", parts=2)
Keys = dict[str, Any]


def highest_rate(counts: np.ndarray, seconds: np.ndarray) -> float:
    """Events per second at which snapshots of so many events, each done in so many seconds, are followed."""
    low, high = 0.0, 2.0 * counts.sum() / seconds.sum()
    while high - low > low / 1000:
        rate = (low + high) / 2
        low, high = (rate, high) if most_behind(counts, seconds, rate) <= BEHIND else (low, rate)
    return low


def most_behind(counts: np.ndarray, seconds: np.ndarray, rate: float) -> int:
    """The most snapshots that wait when one is done, if events come at a rate and a snapshot is sealed by its last one."""
    sealed, done, now = np.cumsum(counts) / rate, np.empty(len(counts)), 0.0
    for number, took in enumerate(seconds):
        now = done[number] = max(now, sealed[number]) + took
    return waiting(sealed, done)


def waiting(sealed: np.ndarray, done: np.ndarray) -> int:
    """The most snapshots that are sealed and not begun when one is done."""
    return int((np.searchsorted(sealed, done, side="right") - np.arange(1, len(done) + 1)).max())


def command_of(
    folder: Path, store: Path, keys: Keys, ranks: int, until_idle_s: int
) -> tuple[Path, list[Any]]:
    """The folder of a run's checkpoints, and the arguments of its command."""
    checkpoint = Path(tempfile.mkdtemp(dir=folder))
    fixed = {"store": str(store), "lane": LANE.name, "checkpoint": str(checkpoint), "threads": 1}
    config = harness.written(checkpoint / "trainer.yaml", {**fixed, "metrics": {"port": 0}, **keys})
    more = ["--until-idle", str(until_idle_s), *(["--ranks", str(ranks)] if ranks > 1 else [])]
    return checkpoint, [*harness.TRAINER, "run", "--config", str(config), *more]


def as_fast_as_it_goes(folder: Path, keys: Keys, ranks: int) -> dict[str, Any]:
    """What a run over all snapshots took, one by one, and the rate that follows from it."""
    checkpoint, command = command_of(folder, folder / "store", keys, ranks, until_idle_s=0)
    child(*command)
    lines = ScoreFile(checkpoint).lines()
    counts = np.array([line["events"] for line in lines])
    kept = np.flatnonzero(np.cumsum(counts) > LEFT_OUT * counts.sum())[1:]
    took = np.diff([line["wall_time"] for line in lines])[kept - 1]
    own = [lines[number] for number in kept]
    phases = {phase: sum(line["seconds"][phase] for line in own) / took.sum() for phase in ("score", "train")}
    rates = {"follows": highest_rate(counts[kept], took), "learns": counts[kept].sum() / took.sum()}
    return {**rates, **phases, "ap": weighted_mean(own, "ap", "scored")}


def follows(folder: Path, keys: Keys, ranks: int, source: EventFile, interval_us: int, rate: float) -> bool:
    """Whether a trainer is never behind by more than it may, while snapshots are sealed at a rate."""
    store = Path(tempfile.mkdtemp(dir=folder)) / "store"
    widths = {"node_features": source.node_features, "edge_features": source.edge_features, "segments": 4}
    header = LogHeader(graph="rate", interval_us=interval_us, ids=source.ids, **widths)
    events, tau = source.events, source.events["t"].to_numpy() // interval_us
    firsts = np.flatnonzero(np.diff(tau, prepend=tau[0] - 1))
    counts = np.diff(np.append(firsts, len(tau)))
    known = int(np.searchsorted(np.cumsum(counts), LEFT_OUT * len(tau), side="right")) + 1
    with LogWriter.open(store, header) as log, LaneWriter(store, LANE) as lane:

        def seal(number: int) -> float:
            first = int(firsts[number])
            log.commit(seal=[(int(tau[first]), events.slice(first, int(counts[number])))])
            lane.catch_up()
            return time.time()

        for number in range(known):
            seal(number)
        checkpoint, command = command_of(folder, store, keys, ranks, until_idle_s=5)
        scores, quiet = ScoreFile(checkpoint), subprocess.DEVNULL
        started = [sys.executable, *command]
        with subprocess.Popen(started, stdout=quiet, stderr=quiet, env=harness.environment()) as trainer:
            ready = lambda: len(scores.lines()) >= known or trainer.poll() is not None  # noqa: E731
            harness.until(ready, "the first snapshots to be learned")
            began, sealed = time.time(), list[float]()
            for number, due in enumerate(np.cumsum(counts[known:]) / rate, known):
                time.sleep(max(0.0, began + due - time.time()))
                sealed.append(seal(number))
            trainer.wait()
    lines = scores.lines()
    whole = not trainer.returncode and len(lines) == len(counts)
    require(whole, f"{json.dumps(keys)} on {ranks} ranks ended with {trainer.returncode} after {len(lines)}")
    behind = waiting(np.array(sealed), np.array([line["wall_time"] for line in lines[known:]]))
    print(
        f"{keys['model']}, {keys['strategy']}, {ranks}: at {rate:,.0f} events/s {behind} waited",
        file=sys.stderr,
    )
    return behind <= BEHIND


def highest_held(rate: float, *run: Any) -> float:
    """The first rate that is held, from one downwards; 0 if none was found."""
    return next((rate * LOWER**turn for turn in range(TRIES) if follows(*run, rate * LOWER**turn)), 0.0)


def plain_loop(file: Path, t_s: np.ndarray, events: int) -> dict[str, Any]:
    """Test, then train, batch by batch, with PyG's building blocks and baselines in dictionaries."""
    import torch
    from event_training import Peer, interactions

    from freshet_graph.trainer.scoring.metrics import average_precision

    torch.set_num_threads(1)
    src, dst, _, negative = interactions(file)
    data = src, dst, t_s, negative
    src, dst, t, negative = (column.tolist() for column in data)
    peer, count = Peer(data, 0), len(src)
    pairs: dict[tuple[int, int], int] = {}
    seen: dict[int, int] = {}

    def recency(pair: tuple[int, int]) -> float:
        return float(pairs[pair]) if pair in pairs else seen.get(pair[1], -1e12) - 1e12

    spent, figures, took = {"score": 0.0, "train": 0.0}, list[float](), list[float]()
    for first in range(0, count, BATCH):
        last, began = min(first + BATCH, count), time.perf_counter()
        peer.attention.eval()  # the memory's own way of going to eval would compute every node
        with torch.no_grad():
            logits = [part.numpy() for part in peer.logits(slice(first, last))]
        ap = average_precision(*logits)
        for baseline in (recency, lambda pair: float(pair in pairs)):
            queries = (zip(src[first:last], other[first:last], strict=True) for other in (dst, negative))
            average_precision(*(np.array([baseline(pair) for pair in each]) for each in queries))
        after_scores = time.perf_counter()
        peer.train(first, last, BATCH)
        for number in range(first, last):
            pairs[src[number], dst[number]] = seen[dst[number]] = t[number]
        if first >= LEFT_OUT * count:
            now = time.perf_counter()
            spent["score"] += after_scores - began
            spent["train"] += now - after_scores
            took.append(now - began)
            figures.append(ap)
    total, batches = sum(spent.values()), max(1, events // BATCH)
    seconds = np.reshape(took[: len(took) // batches * batches], (-1, batches)).sum(axis=1)
    rate = highest_rate(np.full(len(seconds), batches * BATCH), seconds)
    shares = {phase: spent_s / total for phase, spent_s in spent.items()}
    print(f"AP of the loop by its own protocol, batch by batch: {np.mean(figures):.4f}", file=sys.stderr)
    return {"follows": rate, "learns": BATCH * len(figures) / total, **shares}


def cells(row: str, found: dict[str, Any]) -> list[str]:
    shares = (found["score"], found["train"], 1 - found["score"] - found["train"])
    rates = (f"{found[name]:,.0f}" for name in ("follows", "learns"))
    ap = f"{found['ap']:.4f}" if "ap" in found else "–"
    return [*row.split(":"), *rates, *(f"{share:.0%}" for share in shares), ap]


def rows(given: Any) -> Iterator[list[str]]:
    source, interval_us = evened(read_events(harness.existing(given.data)), given.events)
    with harness.scratch() as folder:
        harness.built(folder / "store", source, interval_us, [LANE])
        for row in given.rows:
            model, strategy, ranks = row.split(":")
            keys = {"model": model, "strategy": strategy, **yaml.safe_load(given.keys)}
            runs = [(row, keys)]
            if given.all and strategy in ("sequential", "pac"):
                full = keys | {"scoring": {"sample": "all"}}
                runs.append((f"{model}, all scored:{strategy}:{ranks}", full))
            for name, configured in runs:
                found = as_fast_as_it_goes(folder, configured, int(ranks))
                if not given.dry:
                    run = folder, configured, int(ranks), source, interval_us
                    found["follows"] = highest_held(found["follows"], *run)
                yield cells(name, found)
    try:
        import torch_geometric  # noqa: F401
    except ImportError:
        print("torch_geometric is not installed: no loop to compare with", file=sys.stderr)
        return
    t_s = source.events["t"].to_numpy() // US_PER_S
    yield cells(
        "`torch_geometric`, a plain loop:test, then train:1", plain_loop(given.data, t_s, given.events)
    )


def main() -> None:
    data = harness.DATA / "collegemsg.parquet"
    given = harness.options(__doc__, {"rows": ROWS}, data=data, events=2_000, all=False, dry=False, keys="{}")
    titles = "model | strategy | ranks | follows, events/s | learns, events/s | score | train | rest | AP"
    harness.table(titles, rows(given))


if __name__ == "__main__":
    main()
