"""The highest rate of events that the trainer follows: python benchmarks/live_rate.py [--data FILE] [MODEL:STRATEGY:RANKS …].

A file becomes a store of snapshots of about ``--events`` events each, and ``freshet-trainer run`` is started on it as users
start it, with the defaults of everything, one thread a rank: every event is predicted, floors and figures included, then
learned, written down and checkpointed. The file is learned as fast as it goes. Events over seconds from one line of scores to
the next is the rate at which a snapshot is done when the next one of as many events is sealed, so that none waits; beside it
the shares of scoring, training and the rest of the time. ``--all`` adds a run with ``scoring: {sample: all}`` of each event
model. The first fifth of the events is left out.

Beside them in the same run, if ``torch_geometric`` is installed: a plain loop over the same events with its building blocks
(TGN of the same widths), which in batches of 200 predicts with one negative each, Recency and EdgeBank beside, and learns.
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
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from schemas.config import Lane
from stream.decode.event_file import read_events
from stream.store.from_file import build_store
from trainer.continual.score_file import ScoreFile, weighted_mean

ROWS = (
    "tgn-history:sequential:1", "tgn-history:pac:2", "tgn:sequential:1", "tgn:pac:2", "sage-linear:vertex:1",
    "sage-linear:vertex:2", "tgcn:whole:1", "tgcn:snapshot:2", "tgcn:group:2",
)  # fmt: skip
BATCH = 200
LEFT_OUT = 0.2
"""Of the events, in front: what is compiled and imported once, and weights that are young."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", default=ROWS, metavar="MODEL:STRATEGY:RANKS")
    default = Path(__file__).parents[2] / "shared/data/collegemsg.parquet"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--events", type=int, default=2_000, help="of a snapshot, in the mean")
    parser.add_argument(
        "--all", action="store_true", help="event models with every event scored in full, too"
    )
    parser.add_argument("--keys", default="{}", help="more of the configuration, YAML")
    given = parser.parse_args()
    print(
        f"{processor()}, {os.cpu_count()} cores, {datetime.datetime.now(datetime.UTC).date()}: {given.data.stem}"
    )
    print(
        "| model | strategy | ranks | events/s | score | train | rest | AP |\n|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="freshet-rate-") as name:
        folder = Path(name)
        store_of(given.data, folder / "store", given.events)
        for row in given.rows:
            model, strategy, ranks = row.split(":")
            keys = {"model": model, "strategy": strategy, **yaml.safe_load(given.keys)}
            tell(row, run(folder, keys, int(ranks)))
            if given.all and strategy in ("sequential", "pac"):
                tell(
                    f"{model}, all scored:{strategy}:{ranks}",
                    run(folder, keys | {"scoring": {"sample": "all"}}, int(ranks)),
                )
        try:
            import torch_geometric  # noqa: F401
        except ImportError:
            print("torch_geometric is not installed: no loop to compare with", file=sys.stderr)
            return 0
        tell("`torch_geometric`, a plain loop:test, then train:1", plain_loop(given.data))
    return 0


def processor() -> str:
    """Its name, where the system tells it."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def store_of(file: Path, store: Path, events: int) -> None:
    """A store of the file with a lane of two parts."""
    source = read_events(file)
    t = source.events["t"].to_numpy()
    interval_us = int((t.max() - t.min()) * events // len(t)) + 1
    build_store(source, store, interval_us=interval_us, lanes=[Lane(name="hash", algorithm="hash", parts=2)])


def run(folder: Path, keys: dict[str, Any], ranks: int) -> dict[str, Any]:
    """What a run of the trainer took, snapshot by snapshot; it ends once all is learned."""
    checkpoint = Path(tempfile.mkdtemp(dir=folder))
    config = {
        "store": str(folder / "store"),
        "lane": "hash",
        "checkpoint": str(checkpoint),
        "metrics": {"port": 0},
        **keys,
    }
    file = checkpoint / "trainer.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "trainer.cli", "run", "--config", str(file), "--until-idle", "0"]
    made = subprocess.run(
        [*command, *(["--ranks", str(ranks)] if ranks > 1 else [])],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
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
    return {"rate": counts[kept].sum() / took.sum(), **shares, "ap": weighted_mean(chosen, "ap", "scored")}


def plain_loop(file: Path) -> dict[str, Any]:
    """Test, then train, batch by batch, with PyG's building blocks and floors in dictionaries."""
    import torch
    from event_training import Peer, interactions

    from trainer.scoring.ranking import average_precision

    torch.set_num_threads(1)
    data = interactions(file)
    src, dst, t, negative = (column.tolist() for column in data)
    peer, count = Peer(data, 0), len(src)
    pairs: dict[tuple[int, int], int] = {}
    seen: dict[int, int] = {}
    spent, figures = {"score": 0.0, "train": 0.0}, list[float]()
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
            figures.append(ap[0])
    total = sum(spent.values())
    return {
        "rate": BATCH * len(figures) / total,
        **{phase: seconds / total for phase, seconds in spent.items()},
        "ap": float(np.mean(figures)),
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
    print(
        f"| {model} | {strategy} | {ranks} | {found['rate']:,.0f} | {shares} | {found['ap']:.4f} |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
