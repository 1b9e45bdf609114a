"""Accuracy of snapshot models: python benchmarks/snapshot_accuracy.py [--models NAME …] [--data NAME …] [--seeds 0 1 2].

Every registered snapshot model under ``whole``, with and without what is known beside the graph (``encounters``), by the
protocol of ``freshet-trainer evaluate``: the epoch is picked by validation. Printed is a Markdown table per data set, means ±
standard deviation over the seeds, beside the floors and ``tgn-history``:

- of links (collegemsg in snapshots of a day, bitcoin_otc and jodie_wikipedia in a hundred): AP with random and with historical
  negatives, MRR among 50, for each seed and both kinds of inputs;
- of nodes (--nodes: the streams of node_streams.py): mean squared error.

``--rate`` is of Adam (default: that of the strategy), ``--edge-life`` has snapshots (default of links: without end). Seconds are
those of an epoch, training and validation, and of a cell with its test. A cell is a process; its figures are written to --out
when it is done, and what is there is not run again (``evaluate --matrix``). A setting that changed is another cell. --params has
parameters of models, each for those that have it, such as '{layers: 1, signature: 64}'.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import yaml
from harness import snapshot_models
from node_streams import STREAMS, written

from schemas.matrix import Matrix
from trainer.evaluation.matrix import IDENTITY, cells, read_results, run_matrix
from trainer.models.interface import MODELS

LINKS: dict[str, dict[str, Any]] = {
    "collegemsg": {"interval_s": 86_400},
    "bitcoin_otc": {},
    "jodie_wikipedia": {},
}
BARE = "-bare"
EVENTS = {"model": "tgn-history", "strategy": "sequential", "optimisation": {"batch_size": 200, "epochs": 3}}

Row = Mapping[str, Any]


def matrix_of(given: Any, data: str) -> Matrix:
    """The cells of a data set."""
    config: dict[str, Any] = {
        "strategy": "whole",
        "window": 4,
        "strategy_params": {"steps": 1},
        "optimisation": {"batch_size": 200, "epochs": given.epochs, "learning_rate": given.rate},
    }
    if given.nodes:
        stream = STREAMS[data]
        config |= {"task": "node-regression"}
        source, split = {"file": str(written(data, given.out.parent)), "config": stream.config}, stream.split
    else:
        keys = LINKS[data] | ({"edge_life": given.edge_life} if given.edge_life else {})
        source, split = {"file": str(harness.DATA / f"{data}.parquet"), "config": keys}, "0.7,0.15,0.15"
    models = [
        {
            "name": f"{name}{suffix}",
            "config": {**config, "model": name, "model_params": params | {"encounters": not suffix}},
        }
        for name in given.models
        for params in [
            {
                key: value
                for key, value in given.params.items()
                if key in MODELS.find(name).Options.model_fields
            }
        ]
        for suffix in ("", BARE)
    ]
    if not given.nodes:
        models.append({"name": "tgn-history", "config": EVENTS})
    return Matrix.model_validate({"data": [source], "models": models, "seeds": given.seeds, "split": split})


def rows_of(
    results: Sequence[Row], figures: Mapping[str, str], baselines: Mapping[str, str]
) -> Iterator[list[str]]:
    """A row per model with its figures (title: column of the results), and one per baseline (title: prefix)."""
    for name in dict.fromkeys(row["model"].removesuffix(BARE) for row in results):
        found = [[row for row in results if row["model"] == name + suffix] for suffix in ("", BARE)]
        both = [row for some in found for row in some]
        cells = [shown(some, column) for some in found for column in figures.values()]
        yield [f"`{name}`", *cells, *(f"{mean(both, column):.0f}" for column in ("epoch_s", "seconds"))]
    # baselines have the moment of the model beside them, which encounters decide
    own = [row for row in results if row["model"] != "tgn-history"]
    kinds = [[row for row in own if row["model"].endswith(BARE) == bare] for bare in (False, True)]
    for title, baseline in baselines.items():
        columns = [f"{baseline}_{column}" for column in figures.values()]
        yield [title, *(shown(kind, column, spread=False) for kind in kinds for column in columns), "–", "–"]


def shown(rows: Iterable[Row], column: str, *, spread: bool = True) -> str:
    """A figure over seeds."""
    values = [row[column] for row in rows if row.get(column) is not None]
    if not values:
        return "–"
    sd = f" ± {statistics.stdev(values):.4f}" if spread and len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{sd}"


def mean(rows: Iterable[Row], column: str) -> float:
    """Of rows that have it; NaN where none has."""
    values = [row[column] for row in rows if row.get(column) is not None]
    return statistics.fmean(values) if values else float("nan")


def main() -> None:
    """Run what is missing, and print the tables."""
    given = harness.options(
        __doc__, models=snapshot_models(), data=[], nodes=False, seeds=[0, 1, 2], epochs=5, rate={"type": float},
        params={"type": yaml.safe_load, "default": {}}, edge_life={"type": int}, out=Path("snapshot_accuracy.parquet"),
    )  # fmt: skip
    given.params = {"hidden": 64, **({"signature": 0} if given.nodes else {}), **given.params}
    if given.nodes:
        figures = {"MSE": "mse"}
        baselines = {name: name for name in ("zero", "mean", "persistence", "age_persistence")}
    else:
        figures = {"AP": "ap", "historical": "historical_ap", "MRR": "mrr"}
        baselines = {
            "Recency": "recency",
            "Recency × popularity": "recency_popularity",
            "EdgeBank": "edgebank",
        }
    titles = [f"{title}{bare}" for bare in ("", " without") for title in figures]
    for data in given.data or (STREAMS if given.nodes else LINKS):
        matrix = matrix_of(given, data)
        run_matrix(matrix, given.out)
        keys = {cell.key for cell in cells(matrix)}
        results = [row for row in read_results(given.out) if tuple(row[name] for name in IDENTITY) in keys]
        print(f"\n{data}")
        harness.table(
            " | ".join(["model", *titles, "s an epoch", "s a cell"]), rows_of(results, figures, baselines)
        )


if __name__ == "__main__":
    main()
