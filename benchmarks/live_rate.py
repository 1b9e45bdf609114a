"""The highest rate of events that the trainer follows: python benchmarks/live_rate.py [--data FILE] [MODEL:STRATEGY:RANKS …].

``freshet-trainer run`` is started as users start it, with the defaults of everything, one thread a rank: every event is
predicted, baselines and figures included, then learned, written down and checkpointed. It keeps up while it is never behind by
more than one snapshot: when it has done one, at most one waits. The first fifth of the events is left out.

The rate is found in two steps. First a store with all snapshots is learned as fast as it goes, which tells the seconds of each
snapshot, from one line of scores to the next. If a snapshot of n events is sealed n/R seconds after the one before, and each is
taken when it is sealed and the one before is done, it follows from these seconds when each is done at rate R, and R is bisected.
Then the run is made live at that rate: this process seals one snapshot after the other into a new store, with its lane, while
the trainer follows it. A rate at which it falls behind is lowered by a twentieth and tried again. ``--dry`` leaves the second
step out.

The table has the highest rate that was held, that of learning as fast as it goes, the shares of scoring, training and the rest
of the time in the first step, and the AP of whole snapshots. ``--all`` adds runs with ``scoring: {sample: all}`` of each event
model.

Beside them in the same run, if ``torch_geometric`` is installed: a plain loop over the same events with its building blocks
(TGN of the same widths), which in batches of 200 predicts with one negative each, Recency and EdgeBank beside, and learns. Its
rate follows from the seconds of as many of its batches as make a snapshot, in the same way. It learns between the batches of a
snapshot and draws negatives of its own, so its AP is printed apart.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray

from schemas.config import Lane
from schemas.events import US_PER_S
from schemas.store import LogHeader
from stream.decode.files import EventFile, read_events
from stream.store.from_file import build_store
from stream.store.lane.writer import LaneWriter
from stream.store.log.writer import LogWriter
from trainer.continual.journal import ScoreFile, weighted_mean

ROWS = (
    "tgn-history:sequential:1", "tgn-history:pac:2", "tgn:sequential:1", "tgn:pac:2", "sage-linear:vertex:1",
    "sage-linear:vertex:2", "tgcn:whole:1", "tgcn:snapshot:1", "tgcn:snapshot:2", "tgcn:group:1", "tgcn:group:2",
    "sage-linear:hybrid:1", "sage-linear:hybrid:2",
)  # fmt: skip
BATCH = 200
LEFT_OUT = 0.2
"""Of the events, in front: what is compiled and imported once, and weights that are young."""
BEHIND = 1
"""Snapshots that may wait when one is done."""
LOWER = 0.95
"""The rate after one that was not held, over that one."""
TRIES = 6
LANE = Lane(name="hash", algorithm="hash", parts=2)
PATIENCE_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", default=ROWS, metavar="MODEL:STRATEGY:RANKS")
    default = Path(__file__).parents[2] / "shared/data/collegemsg.parquet"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--events", type=int, default=2_000, help="of a snapshot")
    parser.add_argument(
        "--all", action="store_true", help="event models with every event scored in full, too"
    )
    parser.add_argument("--dry", action="store_true", help="no run at the rate that was found")
    parser.add_argument("--keys", default="{}", help="more of the configuration, YAML")
    given = parser.parse_args()
    print(
        f"{processor()}, {os.cpu_count()} cores, {datetime.datetime.now(datetime.UTC).date()}: {given.data.stem}"
    )
    print(
        "| model | strategy | ranks | follows, events/s | learns, events/s | score | train | rest | AP |\n"
        "|---|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    source, interval_us = evened(read_events(given.data), given.events)
    with tempfile.TemporaryDirectory(prefix="freshet-rate-") as name:
        folder = Path(name)
        build_store(source, folder / "store", interval_us=interval_us, lanes=[LANE])
        for row in given.rows:
            model, strategy, ranks = row.split(":")
            keys = {"model": model, "strategy": strategy, **yaml.safe_load(given.keys)}
            runs = [(row, keys)]
            if given.all and strategy in ("sequential", "pac"):
                full = keys | {"scoring": {"sample": "all"}}
                runs.append((f"{model}, all scored:{strategy}:{ranks}", full))
            for of, configured in runs:
                found = run(folder, configured, int(ranks))
                if not given.dry:
                    held = partial(follows, folder, configured, int(ranks), source, interval_us)
                    found["follows"] = highest_held(found["follows"], held)
                tell(of, found)
        try:
            import torch_geometric  # noqa: F401
        except ImportError:
            print("torch_geometric is not installed: no loop to compare with", file=sys.stderr)
            return 0
        t_s = source.events["t"].to_numpy() // US_PER_S
        tell("`torch_geometric`, a plain loop:test, then train:1", plain_loop(given.data, t_s, given.events))
    return 0


def evened(source: EventFile, events: int) -> tuple[EventFile, int]:
    """The same events with times at which every snapshot has as many of them, and its length, microseconds.

    Inside a snapshot times are stretched evenly, so order and most of what gaps tell stay as they were.
    """
    table = source.events.sort_by("t")
    t = table["t"].to_numpy()
    interval_us = int((t[-1] - t[0]) * events // len(t)) + 1
    place, moved = np.arange(len(t)) // events, np.empty_like(t)
    for number in range(int(place[-1]) + 1):
        here = slice(number * events, (number + 1) * events)
        since = t[here] - t[here][0]
        inside = (since * ((interval_us - 1) / max(1, int(since[-1])))).astype(np.int64)
        moved[here] = t[0] // interval_us * interval_us + number * interval_us + inside
    column = table.schema.get_field_index("t")
    return replace(
        source, events=table.set_column(column, table.schema.field("t"), pa.array(moved))
    ), interval_us


def highest_rate(counts: NDArray[np.int64], seconds: NDArray[np.float64]) -> float:
    """Events a second at which snapshots of so many events, each done in so many seconds, are followed."""
    low, high = 0.0, 2.0 * counts.sum() / seconds.sum()
    while high - low > low / 1000:
        rate = (low + high) / 2
        low, high = (rate, high) if most_behind(counts, seconds, rate) <= BEHIND else (low, rate)
    return low


def most_behind(counts: NDArray[np.int64], seconds: NDArray[np.float64], rate: float) -> int:
    """The most snapshots that wait when one is done, if events come at a rate and a snapshot is sealed by its last one."""
    sealed = np.cumsum(counts) / rate
    done = np.empty(len(counts))
    now = 0.0
    for place, took in enumerate(seconds):
        now = done[place] = max(now, sealed[place]) + took
    return waiting(sealed, done)


def waiting(sealed: NDArray[np.float64], done: NDArray[np.float64]) -> int:
    """The most snapshots that are sealed and not begun when one is done."""
    return int((np.searchsorted(sealed, done, side="right") - np.arange(1, len(done) + 1)).max())


def highest_held(rate: float, held: Callable[[float], bool]) -> float:
    """The first rate that is held, from one downwards; 0 if none was found."""
    for _ in range(TRIES):
        if held(rate):
            return rate
        rate *= LOWER
    return 0.0


def follows(
    folder: Path, keys: dict[str, Any], ranks: int, source: EventFile, interval_us: int, rate: float
) -> bool:
    """Whether a trainer is never behind by more than it may, while snapshots are sealed at a rate."""
    live = Path(tempfile.mkdtemp(dir=folder))
    header = LogHeader(
        graph="rate",
        interval_us=interval_us,
        ids=source.ids,
        node_features=source.node_features,
        edge_features=source.edge_features,
        segments=4,
    )
    events = source.events
    tau = events["t"].to_numpy() // interval_us
    firsts = np.flatnonzero(np.diff(tau, prepend=tau[0] - 1))
    counts = np.diff(np.append(firsts, len(tau)))
    known = int(np.searchsorted(np.cumsum(counts), LEFT_OUT * len(tau), side="right")) + 1
    with LogWriter.open(live / "store", header) as log, LaneWriter(live / "store", LANE) as lane:

        def seal(place: int) -> float:
            first = int(firsts[place])
            log.commit(seal=[(int(tau[first]), events.slice(first, int(counts[place])))])
            lane.catch_up()
            return time.time()

        for place in range(known):
            seal(place)
        checkpoint, command = command_of(folder, live / "store", keys, ranks, until_idle_s=5)
        scores = ScoreFile(checkpoint)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as trainer:
            patient_until = time.monotonic() + PATIENCE_S
            while len(scores.lines()) < known and trainer.poll() is None and time.monotonic() < patient_until:
                time.sleep(0.05)
            began, sealed = time.time(), list[float]()
            for place, due in enumerate(np.cumsum(counts[known:]) / rate, known):
                time.sleep(max(0.0, began + due - time.time()))
                sealed.append(seal(place))
            trainer.wait()
    lines = scores.lines()
    if trainer.returncode or len(lines) != len(counts):
        raise SystemExit(
            f"{json.dumps(keys)} on {ranks} ranks ended with {trainer.returncode} after {len(lines)}"
        )
    done = np.array([line["wall_time"] for line in lines[known:]])
    behind = waiting(np.array(sealed), done)
    print(
        f"{keys['model']} under {keys['strategy']} on {ranks}: at {rate:,.0f} events/s {behind} waited",
        file=sys.stderr,
    )
    return behind <= BEHIND


def processor() -> str:
    """Its name, where the system tells it."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def command_of(
    folder: Path, store: Path, keys: dict[str, Any], ranks: int, until_idle_s: int
) -> tuple[Path, list[str]]:
    """The folder of a run's checkpoints, and how the run is started."""
    checkpoint = Path(tempfile.mkdtemp(dir=folder))
    config = {
        "store": str(store),
        "lane": LANE.name,
        "checkpoint": str(checkpoint),
        "metrics": {"port": 0},
        "threads": 1,
        **keys,
    }
    file = checkpoint / "trainer.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [
        sys.executable,
        "-m",
        "trainer.cli",
        "run",
        "--config",
        str(file),
        "--until-idle",
        str(until_idle_s),
    ]
    return checkpoint, [*command, *(["--ranks", str(ranks)] if ranks > 1 else [])]


def run(folder: Path, keys: dict[str, Any], ranks: int) -> dict[str, Any]:
    """What a run over all snapshots took, one by one, and the rate that follows from it."""
    checkpoint, command = command_of(folder, folder / "store", keys, ranks, until_idle_s=0)
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise SystemExit(f"{json.dumps(keys)} on {ranks} ranks:\n{made.stderr[-2000:]}")
    lines = ScoreFile(checkpoint).lines()
    counts = np.array([line["events"] for line in lines])
    kept = np.flatnonzero(np.cumsum(counts) > LEFT_OUT * counts.sum())[1:]
    took = np.diff([line["wall_time"] for line in lines])[kept - 1]
    chosen = [lines[place] for place in kept]
    shares = {
        phase: sum(line["seconds"][phase] for line in chosen) / took.sum() for phase in ("score", "train")
    }
    return {
        "follows": highest_rate(counts[kept], took),
        "learns": counts[kept].sum() / took.sum(),
        **shares,
        "ap": weighted_mean(chosen, "ap", "scored"),
    }


def plain_loop(file: Path, t_s: NDArray[np.int64], events: int) -> dict[str, Any]:
    """Test, then train, batch by batch, with PyG's building blocks and baselines in dictionaries."""
    import torch
    from event_training import Peer, interactions

    from trainer.scoring.metrics import average_precision

    torch.set_num_threads(1)
    src, dst, _, negative = interactions(file)
    data = src, dst, t_s, negative
    src, dst, t, negative = (column.tolist() for column in data)
    peer, count = Peer(data, 0), len(src)
    pairs: dict[tuple[int, int], int] = {}
    seen: dict[int, int] = {}
    spent, figures, took = {"score": 0.0, "train": 0.0}, list[float](), list[float]()
    for first in range(0, count, BATCH):
        last, began = min(first + BATCH, count), time.perf_counter()
        peer.attention.eval()  # the memory's own way of going to eval would compute every node
        with torch.no_grad():
            logits = [part.numpy() for part in peer.logits(slice(first, last))]
        ap = [average_precision(*logits)]
        for scorer in ("recency", "edgebank"):
            asked = (
                [(u, other) for u, other in zip(src[first:last], of[first:last], strict=True)]
                for of in (dst, negative)
            )
            ap.append(
                average_precision(
                    *(np.array([floor(pairs, seen, pair, scorer) for pair in each]) for each in asked)
                )
            )
        scored = time.perf_counter()
        peer.train(first, last, BATCH)
        for place in range(first, last):
            pairs[src[place], dst[place]] = seen[dst[place]] = t[place]
        if first >= LEFT_OUT * count:
            spent["score"] += scored - began
            spent["train"] += time.perf_counter() - scored
            took.append(time.perf_counter() - began)
            figures.append(ap[0])
    total = sum(spent.values())
    each = max(1, events // BATCH)
    seconds = np.reshape(took[: len(took) // each * each], (-1, each)).sum(axis=1)
    return {
        "follows": highest_rate(np.full(len(seconds), each * BATCH), seconds),
        "learns": BATCH * len(figures) / total,
        **{phase: seconds / total for phase, seconds in spent.items()},
        "ap_per_batch": float(np.mean(figures)),
    }


def floor(
    pairs: dict[tuple[int, int], int], seen: dict[int, int], pair: tuple[int, int], scorer: str
) -> float:
    """The score that Recency or EdgeBank gives a pair."""
    if scorer == "edgebank":
        return float(pair in pairs)
    return float(pairs[pair]) if pair in pairs else seen.get(pair[1], -1e12) - 1e12


def tell(row: str, found: dict[str, Any]) -> None:
    model, strategy, ranks = row.split(":")
    rest = 1 - found["score"] - found["train"]
    shares = " | ".join(f"{100 * share:.0f} %" for share in (found["score"], found["train"], rest))
    rates = f"{found['follows']:,.0f} | {found['learns']:,.0f}"
    ap = f"{found['ap']:.4f}" if "ap" in found else "–"
    print(f"| {model} | {strategy} | {ranks} | {rates} | {shares} | {ap} |", flush=True)
    if "ap_per_batch" in found:
        print(f"AP of the loop by its own protocol, batch by batch: {found['ap_per_batch']:.4f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
