"""The same numbers before and after a change: python benchmarks/equal_runs.py --against COMMIT [--only WORD --keys FILE].

Every model runs under every strategy that trains it, by ``freshet-trainer run`` and ``evaluate`` as users start them, on
one store of invented meetings: once by the code of this tree, once by that of the commit, which is checked out beside
it. Each line of ``scores.jsonl``, each tensor of the newest checkpoint and each figure of ``evaluate`` must be equal bit
for bit, and have a partner on the other side; wall times and bytes are left out. Exit code 1 if anything differs.

FILE is YAML with what the change did to keys: ``renamed`` (a mapping of old names to new ones, wherever they are), ``gone``
and ``new`` (lists of paths as ``scores.floor``, without the numbers of entries; a path stands for all below it).
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml

from schemas.config import Lane
from schemas.events import US_PER_S, event_schema
from stream.store.from_file import build_store

TREE = Path(__file__).resolve().parents[1]
SMALL = {"memory": 16, "time_width": 8}
EVENT_MODELS = {
    **dict.fromkeys(("jodie", "dyrep", "tgn", "tige", "tgn-history"), SMALL),
    "graphmixer": {"hidden": 16, "time_width": 8},
    "dygformer": {"hidden": 16, "channels": 8, "time_width": 8, "neighbours": 7},
}
ENTRY = re.compile(r"\[\d+\]")
TIMES = ("seconds", "balance", "wall_time", "_s", "peak_mib", "bytes", "checkpoint", "rss")
"""Keys that hold one of these words are no numbers of the model."""


@dataclass(frozen=True)
class Case:
    """One command and what it is run with."""

    name: str
    model: str
    strategy: str
    lane: str = "sep"
    ranks: int = 1
    more: Mapping[str, Any] = field(default_factory=dict)
    evaluates: bool = False
    stops_after: int | None = None
    """The run ends after this snapshot and is started again."""


def cases() -> list[Case]:
    """Every pair of today, several ranks, and what a strategy does beside learning."""
    sage = {"model_params": {"hidden": 16, "signature": 8}, "lane": "hash"}
    found = [
        Case(f"{model} sequential", model, "sequential", more={"model_params": params})
        for model, params in EVENT_MODELS.items()
    ]
    found += [
        Case(f"{model} pac", model, "pac", more={"model_params": params})
        for model, params in EVENT_MODELS.items()
    ]
    history = {"model_params": SMALL}
    tgcn = {"model_params": {"hidden": 16, "signature": 8}}
    return [
        *found,
        Case("sage-linear vertex", "sage-linear", "vertex", more=sage),
        Case("sage-linear vertex, 2 ranks", "sage-linear", "vertex", ranks=2, more=sage),
        Case("sage-linear vertex, resumed", "sage-linear", "vertex", more=sage, stops_after=5),
        Case(
            "sage-linear vertex, decay and no clipping",
            "sage-linear",
            "vertex",
            more={**sage, "optimisation": {"rate": "decay", "grad_clip": None, "weight_decay": 0.01}},
        ),
        Case("tgcn whole", "tgcn", "whole", more=tgcn),
        Case("tgcn whole, resumed", "tgcn", "whole", more={**tgcn, "horizon": 4}, stops_after=5),
        Case("dcrnn whole", "dcrnn", "whole", more=tgcn),
        Case("tgcn snapshot, 2 ranks", "tgcn", "snapshot", ranks=2, more=tgcn),
        Case("tgcn group", "tgcn", "group", more={**tgcn, "horizon": 6}),
        Case("tgcn hybrid", "tgcn", "hybrid", lane="hash", more={**tgcn, "horizon": 6}),
        Case("tgn-history pac, 2 ranks", "tgn-history", "pac", ranks=2, more=history),
        Case(
            "tgn pac, 2 ranks, mean, each",
            "tgn",
            "pac",
            ranks=2,
            more={
                "model_params": {**SMALL, "dropout": 0.1},
                "strategy_params": {"synchronise": "mean", "batch": "each"},
            },
        ),
        Case("tgn-history sequential, resumed", "tgn-history", "sequential", more=history, stops_after=5),
        Case(
            "tgn-history sequential, replay and budget",
            "tgn-history",
            "sequential",
            more={
                **history,
                "optimisation": {"replay": {"ratio": 0.5, "batches": 8}, "rate": "on-drift"},
                "budget": {"nodes": 60, "events": 900},
            },
            stops_after=6,
        ),
        Case("evaluate sage-linear", "sage-linear", "vertex", more=sage, evaluates=True),
        Case("evaluate sage-linear, 2 ranks", "sage-linear", "vertex", ranks=2, more=sage, evaluates=True),
        Case("evaluate tgn-history", "tgn-history", "sequential", more=history, evaluates=True),
        Case(
            "evaluate tgn-history pac, 2 ranks", "tgn-history", "pac", ranks=2, more=history, evaluates=True
        ),
        Case(
            "evaluate tgn, node classification",
            "tgn",
            "sequential",
            more={**history, "task": "node-classification"},
            evaluates=True,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", default="HEAD", help="The commit to compare with.")
    parser.add_argument("--only", default="", help="Cases whose name has this word.")
    parser.add_argument("--snapshots", type=int, default=12)
    parser.add_argument("--keys", type=Path, help="Renamed, gone and new keys.")
    given = parser.parse_args()
    keys = yaml.safe_load(given.keys.read_text(encoding="utf-8")) if given.keys else {}
    wrong = numbers = 0
    with tempfile.TemporaryDirectory(prefix="freshet-equal-") as name, checked_out(given.against) as former:
        folder = Path(name)
        events = meetings(given.snapshots)
        pq.write_table(as_file(events), folder / "events.parquet")
        lanes = [
            Lane(name="hash", algorithm="hash", parts=4),
            Lane(name="sep", algorithm="sep", parts=4, params={"hubs": 0.1}),
        ]
        build_store(
            events,
            folder / "store",
            interval_us=US_PER_S,
            lanes=lanes,
            node_features=4,
            edge_features=0,
            segments=2,
        )
        for case in cases():
            if given.only not in case.name:
                continue
            before, after = (
                ran(case, tree, folder, folder / side / case.name.replace(" ", "-"))
                for side, tree in (("before", former), ("after", TREE))
            )
            found, count = differences(before, after, keys)
            wrong, numbers = wrong + bool(found), numbers + count
            print(
                f"{'DIFFERENT' if found else 'equal':9}  {case.name}  ({count} numbers compared)", flush=True
            )
            for line in found[:5]:
                print(f"           {line}", flush=True)
    print(f"{wrong} cases differ from {given.against}; {numbers} numbers were compared")
    return int(wrong > 0)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the tree of a commit."""
    with tempfile.TemporaryDirectory(prefix="freshet-former-") as name:
        tree = Path(name) / "tree"
        git = ["git", "-C", str(TREE), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def ran(case: Case, tree: Path, folder: Path, work: Path) -> dict[str, Any]:
    """Run a case by the code of a tree; the numbers that it left."""
    work.mkdir(parents=True)
    config = {
        "lane": case.lane,
        "model": case.model,
        "strategy": case.strategy,
        "window": 3,
        "checkpoint": str(work / "checkpoints"),
        "metrics": {"port": 0},
        "device": "cpu",
        **case.more,
    }
    config["optimisation"] = {"batch_size": 64, "learning_rate": 0.01, **config.get("optimisation", {})}
    if case.evaluates:
        config |= {"parts": 4, "interval_s": 1.0}
        command = ["evaluate", "--data", str(folder / "events.parquet"), "--seeds", "2"]
    else:
        config["store"] = str(folder / "store")
        command = ["run", "--until-idle", "0"]
    (work / "trainer.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command += ["--config", str(work / "trainer.yaml"), "--json"]
    if case.ranks > 1:
        command += ["--ranks", str(case.ranks)]
    if case.stops_after is not None:
        freshet_trainer(tree, [*command, "--as-of", str(case.stops_after)])
    result = json.loads(freshet_trainer(tree, command))
    if case.evaluates:
        return {"result": result}
    checkpoint = max((work / "checkpoints").glob("*.pt"))
    lines = (work / "checkpoints" / "scores.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        "scores": [json.loads(line) for line in lines],
        "checkpoint": torch.load(checkpoint, map_location="cpu", weights_only=True),
    }


def freshet_trainer(tree: Path, arguments: list[str]) -> str:
    """The output of a tree's command."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "trainer.cli", *arguments],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} by {tree} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def differences(before: Any, after: Any, keys: Mapping[str, Any]) -> tuple[list[str], int]:
    """Places at which two results differ or only one has a value, and how many numbers were compared."""
    old, new, found, count = dict(leaves(before)), dict(leaves(after)), [], 0
    for was, now in keys.get("renamed", {}).items():
        old = {re.sub(rf"(?<!\w){was}(?!\w)", now, path): value for path, value in old.items()}
    for path in sorted(old.keys() | new.keys()):
        if path not in new or path not in old:
            side, known = ("before", "gone") if path in old else ("after", "new")
            if not any(is_below(ENTRY.sub("", path), key) for key in keys.get(known, [])):
                found.append(f"{path}: only {side}")
            continue
        one, other = old[path], new[path]
        count += one.numel() if isinstance(one, torch.Tensor) else 1
        if not equal(one, other):
            found.append(f"{path}: {shown(one)} and {shown(other)}")
    return found, count


def leaves(found: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Values by their path, without times and bytes."""
    if isinstance(found, dict):
        for key, value in found.items():
            if not any(word in str(key) for word in TIMES):
                yield from leaves(value, f"{where}.{key}" if where else str(key))
    elif isinstance(found, list | tuple):
        for number, value in enumerate(found):
            yield from leaves(value, f"{where}[{number}]")
    else:
        yield where, found


def is_below(path: str, key: str) -> bool:
    """Whether a path is a key's or one below it."""
    return path == key or path.startswith((f"{key}.", f"{key}["))


def equal(one: Any, other: Any) -> bool:
    """Bit for bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same_kind = one.shape == other.shape and one.dtype == other.dtype
        return same_kind and one.numpy().tobytes() == other.numpy().tobytes()
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return bool(one == other) or (is_nan(one) and is_nan(other))


def shown(value: Any) -> str:
    """A number, or the shape of many."""
    return f"array {tuple(value.shape)}" if isinstance(value, torch.Tensor | np.ndarray) else repr(value)


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def meetings(snapshots: int) -> pa.Table:
    """Two communities that meet among themselves, strangers and deletes, nodes that come and go; a snapshot a second."""
    rng = np.random.default_rng(11)
    a_snapshot, nodes = 240, 80
    rows: list[dict[str, Any]] = [
        {"op": 0, "src": node, "t": 0, "features": rng.normal(1 if node % 2 else -1, 0.3, 4).tolist()}
        for node in range(nodes)
    ]
    for tau in range(snapshots):
        here = np.arange(4 * tau, 4 * tau + nodes)
        for t in np.sort(rng.integers(tau * US_PER_S + 1, (tau + 1) * US_PER_S, a_snapshot)).tolist():
            src = int(rng.choice(here))
            alike = here[here % 2 == src % 2]
            dst = int(rng.choice(alike if rng.random() < 0.9 else here))
            op = -1 if rng.random() < 0.05 else 1
            rows.append({"op": op, "src": src, "dst": dst, "t": t, "label": src % 2})
    columns = {
        name: [row.get(name, 1.0 if name == "weight" else None) for row in rows]
        for name in event_schema("int").names
    }
    return pa.table(columns, schema=event_schema("int"))


def as_file(events: pa.Table) -> pa.Table:
    """Events as a file of edges has them: no node events, seconds."""
    edges = events.filter(pa.array(np.asarray(events["op"]) != 0))
    seconds = np.asarray(edges["t"]) / US_PER_S
    return edges.select(["src", "dst", "op", "label"]).append_column("t", pa.array(seconds))


if __name__ == "__main__":
    raise SystemExit(main())
