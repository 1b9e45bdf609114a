"""The same numbers before and after a change: python benchmarks/equal_runs.py --against COMMIT [--only WORD --keys FILE].

Every model runs under every strategy that trains it, by ``freshet-trainer run`` and ``evaluate`` as users start them, on
one store of invented meetings: once by the code of this tree, once by that of the commit, which is checked out beside
it. Each line of ``scores.jsonl``, each tensor of the newest checkpoint and each figure of ``evaluate`` must be equal bit
for bit, and have a partner on the other side; wall times and bytes are left out. Exit code 1 if anything differs.

FILE is YAML with what the change did to keys: ``renamed`` (a mapping of old names to new ones, wherever they are), ``gone``
and ``new`` (lists of paths as ``scores.baseline``, without the numbers of entries; a path stands for all below it).
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import US_PER_S, event_schema

SMALL = {"memory": 16, "time_width": 8}
EVENT_MODELS = {
    **dict.fromkeys(("jodie", "dyrep", "tgn", "tige", "tgn-history"), SMALL),
    "graphmixer": {"hidden": 16, "time_width": 8},
    "dygformer": {"hidden": 16, "channels": 8, "time_width": 8, "neighbours": 7},
}
HISTORY = {"model_params": SMALL}
TGCN = {"model_params": {"hidden": 16, "signature": 8}}
SAGE = {**TGCN, "lane": "hash"}
ENTRY = re.compile(r"\[\d+\]")
TIMES = ("seconds", "balance", "wall_time", "_s", "peak_mib", "bytes", "checkpoint", "rss")
"""Keys that hold one of these words are no numbers of the model."""


@dataclass(frozen=True)
class Case:
    """One command and what it is run with."""

    name: str
    """Begins with model and strategy; those of ``evaluate`` with that word."""
    more: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 1
    stops_after: int | None = None
    """The run ends after this snapshot and is started again."""

    @property
    def evaluates(self) -> bool:
        return self.name.startswith("evaluate ")


def cases() -> list[Case]:
    """Every pair of today, several ranks, and what a strategy does beside learning."""
    decay = {"rate": "decay", "grad_clip": None, "weight_decay": 0.01}
    mean = {
        "model_params": {**SMALL, "dropout": 0.1},
        "strategy_params": {"synchronise": "mean", "batch": "each"},
    }
    replay = {"replay": {"ratio": 0.5, "batches": 8}, "rate": "on-drift"}
    return [
        *(
            Case(f"{model} {strategy}", {"model_params": params})
            for strategy in ("sequential", "pac")
            for model, params in EVENT_MODELS.items()
        ),
        Case("sage-linear vertex", SAGE),
        Case("sage-linear vertex, 2 ranks", SAGE, ranks=2),
        Case("sage-linear vertex, resumed", SAGE, stops_after=5),
        Case("sage-linear vertex, decay and no clipping", {**SAGE, "optimisation": decay}),
        Case("tgcn whole", TGCN),
        Case("tgcn whole, resumed", {**TGCN, "horizon": 4}, stops_after=5),
        Case("dcrnn whole", TGCN),
        Case("tgcn snapshot, 2 ranks", TGCN, ranks=2),
        Case("tgcn group", {**TGCN, "horizon": 6}),
        Case("tgcn hybrid", {**SAGE, "horizon": 6}),
        Case("tgn-history pac, 2 ranks", HISTORY, ranks=2),
        Case("tgn pac, 2 ranks, mean, each", mean, ranks=2),
        Case("tgn-history sequential, resumed", HISTORY, stops_after=5),
        Case(
            "tgn-history sequential, replay and budget",
            {**HISTORY, "optimisation": replay, "budget": {"nodes": 60, "events": 900}},
            stops_after=6,
        ),
        Case("evaluate sage-linear vertex", SAGE),
        Case("evaluate sage-linear vertex, 2 ranks", SAGE, ranks=2),
        Case("evaluate tgn-history sequential", HISTORY),
        Case("evaluate tgn-history pac, 2 ranks", HISTORY, ranks=2),
        Case("evaluate tgn sequential, edge classification", {**HISTORY, "task": "edge-classification"}),
    ]


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the tree of a commit."""
    with harness.scratch() as folder:
        tree, git = folder / "tree", ["git", "-C", str(harness.ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(tree), commit], check=True)
        try:
            where = harness.child(
                "-c", "from freshet_graph import trainer; print(trainer.__file__)", tree=tree
            ).out
            harness.require(where.startswith(str(tree)), f"the former code is not what runs, but {where}")
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def ran(case: Case, tree: Path, folder: Path, work: Path) -> dict[str, Any]:
    """Run a case by the code of a tree; the numbers that it left."""
    model, strategy = case.name.removeprefix("evaluate ").replace(",", "").split()[:2]
    config = {
        "lane": "sep", "model": model, "strategy": strategy, "window": 3, "checkpoint": str(work / "checkpoints"),
        "metrics": {"port": 0}, "device": "cpu", **case.more,
    }  # fmt: skip
    config["optimisation"] = {"batch_size": 64, "learning_rate": 0.01, **config.get("optimisation", {})}
    if case.evaluates:
        config |= {"parts": 4, "interval_s": 1.0}
        command = ["evaluate", "--data", folder / "events.parquet", "--seeds", 2]
    else:
        config["store"] = str(folder / "store")
        command = ["run", "--until-idle", 0]
    command += ["--config", harness.written(work / "trainer.yaml", config), "--json"]
    command += ["--ranks", case.ranks] if case.ranks > 1 else []
    trainer = (*harness.TRAINER, *command)
    if case.stops_after is not None:
        harness.child(*trainer, "--as-of", case.stops_after, tree=tree)
    done = harness.child(*trainer, tree=tree)
    if case.evaluates:
        return {"result": json.loads(done.out)}
    lines = (work / "checkpoints" / "scores.jsonl").read_text(encoding="utf-8").splitlines()
    checkpoint = torch.load(max((work / "checkpoints").glob("*.pt")), map_location="cpu", weights_only=True)
    return {"scores": [json.loads(line) for line in lines], "checkpoint": checkpoint}


def differences(before: Any, after: Any, keys: Mapping[str, Any]) -> tuple[dict[str, float], int]:
    """How far apart two results are, by place, where they differ or only one has a value, and how many numbers were compared."""
    old, new, gaps, count = dict(leaves(before)), dict(leaves(after)), {}, 0
    for was, now in keys.get("renamed", {}).items():
        old = {re.sub(rf"(?<!\w){was}(?!\w)", now, path): value for path, value in old.items()}
    for path in sorted(old.keys() | new.keys()):
        if path not in new or path not in old:
            side, known = ("before", "gone") if path in old else ("after", "new")
            if not any(is_below(ENTRY.sub("", path), key) for key in keys.get(known, [])):
                gaps[f"{path}: only {side}"] = np.inf
            continue
        one, other = old[path], new[path]
        count += one.numel() if isinstance(one, torch.Tensor) else 1
        if not equal(one, other):
            gaps[f"{path}: {shown(one)} and {shown(other)}"] = gap_of(one, other)
    return gaps, count


def gap_of(one: Any, other: Any) -> float:
    """The largest difference of two numbers, or arrays of one shape; infinite for anything else."""
    if isinstance(one, str | None) or isinstance(other, str | None) or np.shape(one) != np.shape(other):
        return np.inf
    return float(np.nanmax(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)), initial=0))


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
    if all(isinstance(each, torch.Tensor) for each in (one, other)):
        one, other = one.numpy(), other.numpy()
    if all(isinstance(each, np.ndarray) for each in (one, other)):
        return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return bool(one == other) or (one != one and other != other)  # NaN  # noqa: PLR0124


def shown(value: Any) -> str:
    """A number, or the shape of many."""
    return f"array {tuple(value.shape)}" if isinstance(value, torch.Tensor | np.ndarray) else repr(value)


def meetings(snapshots: int) -> pa.Table:
    """Two communities that meet among themselves, strangers and deletes, nodes that come and go; a snapshot per second."""
    rng, a_snapshot, nodes = np.random.default_rng(11), 240, 80
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
    schema = event_schema("int")
    columns = {
        name: [row.get(name, 1.0 if name == "weight" else None) for row in rows] for name in schema.names
    }
    return pa.table(columns, schema=schema)


def as_file(events: pa.Table) -> pa.Table:
    """Events as a file of edges has them: no node events, seconds."""
    edges = events.filter(pa.array(np.asarray(events["op"]) != 0))
    seconds = np.asarray(edges["t"]) / US_PER_S
    return edges.select(["src", "dst", "op", "label"]).append_column("t", pa.array(seconds))


def main() -> None:
    given = harness.options(__doc__, against="HEAD", only="", snapshots=12, keys={"type": Path})
    keys = yaml.safe_load(given.keys.read_text(encoding="utf-8")) if given.keys else {}
    wrong = numbers = 0
    with harness.scratch() as folder, checked_out(given.against) as former:
        events = meetings(given.snapshots)
        pq.write_table(as_file(events), folder / "events.parquet")
        lanes = [
            *harness.lanes("hash", parts=4),
            Lane(name="sep", algorithm="sep", parts=4, params={"hubs": 0.1}),
        ]
        harness.built(folder / "store", events, US_PER_S, lanes, node_features=4, edge_features=0, segments=2)
        for case in cases():
            if given.only not in case.name:
                continue
            try:
                before, after = (
                    ran(case, tree, folder, folder / side / re.sub(r"\W+", "-", case.name))
                    for side, tree in (("before", former), ("after", harness.ROOT))
                )
            except SystemExit as error:
                if "unknown model" not in str(error):
                    raise
                print(f"new        {case.name}", flush=True)  # the commit has no such model
                continue
            gaps, count = differences(before, after, keys)
            wrong, numbers = wrong + bool(gaps), numbers + count
            print(
                f"{'DIFFERENT' if gaps else 'equal':9}  {case.name}  ({count} numbers compared)", flush=True
            )
            for place, gap in sorted(gaps.items(), key=lambda item: -item[1])[:5]:
                print(f"           {gap:.0e} apart: {place}", flush=True)
    print(f"{wrong} cases differ from {given.against}; {numbers} numbers were compared")
    harness.require(numbers > 0 and not wrong, "runs are not equal")


if __name__ == "__main__":
    main()
