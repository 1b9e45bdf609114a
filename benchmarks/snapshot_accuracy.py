"""Accuracy of snapshot models: python benchmarks/snapshot_accuracy.py [--models NAME …] [--data NAME …] [--seeds 0 1 2].

Every registered snapshot model under ``whole``, with and without what is known beside the graph (``encounters``), by the
protocol of ``freshet-trainer evaluate``: the epoch is picked by validation. Printed is a Markdown table per data set, means ±
standard deviation over the seeds, beside the baselines and ``tgn-history``:

- of links (collegemsg in snapshots of a day, bitcoin_otc and jodie_wikipedia in a hundred): AP with random and with historical
  negatives, MRR among 50, for each seed and both kinds of inputs;
- of nodes (--nodes: the streams of node_streams.py): mean squared error.

Seconds are those of an epoch, training and validation, and of a cell with its test. A cell is a process; its figures are
written to --out when it is done, and what is there is not run again (``evaluate --matrix``). A setting that changed is another
cell. --params has parameters of models, each for those that have it, such as '{layers: 1, signature: 64}'.
"""

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from node_streams import DATA, STREAMS, written

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


def snapshot_models() -> list[str]:
    """Names of all registered snapshot models."""
    return sorted(name for name, made in MODELS.all().items() if getattr(made, "kind", "") == "snapshot")


def matrix_of(given: argparse.Namespace, data: str) -> Matrix:
    """The cells of a data set."""
    config: dict[str, Any] = {
        "strategy": "whole",
        "window": given.window,
        "strategy_params": {"steps": given.steps},
        "optimisation": {"batch_size": given.batch, "epochs": given.epochs, "learning_rate": given.rate},
    }
    if given.nodes:
        stream = STREAMS[data]
        config |= {"task": "node-regression"}
        source, split = {"file": str(written(data, given.out.parent)), "config": stream.config}, stream.split
    else:
        keys = LINKS[data] | ({"edge_life": given.edge_life} if given.edge_life else {})
        source, split = {"file": str(DATA / f"{data}.parquet"), "config": keys}, "0.7,0.15,0.15"
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
    if not (given.nodes or given.no_events):
        models.append({"name": "tgn-history", "config": EVENTS})
    return Matrix.model_validate({"data": [source], "models": models, "seeds": given.seeds, "split": split})


def table(rows: Sequence[Row], figures: Mapping[str, str], baselines: Mapping[str, str]) -> str:
    """Markdown: a row per model with its figures (title: column of the results), and one per baseline (title: prefix)."""
    titles = [f"{title}{bare}" for bare in ("", " without") for title in figures]
    lines = [["model", *titles, "s an epoch", "s a cell"], ["---", *["---:"] * (len(titles) + 2)]]
    names = dict.fromkeys(row["model"].removesuffix(BARE) for row in rows)
    for name in names:
        found = [[row for row in rows if row["model"] == name + suffix] for suffix in ("", BARE)]
        both = [row for some in found for row in some]
        lines.append(
            [f"`{name}`", *(shown(some, column) for some in found for column in figures.values())]
            + [f"{mean(both, column):.0f}" for column in ("epoch_s", "seconds")]
        )  # fmt: skip
    # baselines have the moment of the model beside them, which encounters decide
    kinds = [
        [row for row in rows if row["model"] != "tgn-history" and row["model"].endswith(BARE) == bare]
        for bare in (False, True)
    ]
    for title, baseline in baselines.items():
        found = [
            shown(kind, f"{baseline}_{column}", spread=False) for kind in kinds for column in figures.values()
        ]
        lines.append([title, *found, "–", "–"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=snapshot_models())
    parser.add_argument("--data", nargs="+", help="Default: all of the task.")
    parser.add_argument("--nodes", action="store_true", help="Node regression instead of links.")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--rate", type=float, help="Of Adam; default: that of the strategy.")
    parser.add_argument("--batch", type=int, default=200, help="Items of a step, at least.")
    parser.add_argument("--params", type=yaml.safe_load, default={}, help="YAML; default: {hidden: 64}.")
    parser.add_argument("--edge-life", type=int, help="Snapshots; default: of links without end.")
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--no-events", action="store_true", help="Without tgn-history.")
    parser.add_argument("--out", type=Path, default=Path("snapshot_accuracy.parquet"))
    given = parser.parse_args()
    given.params = {"hidden": 64, **({"signature": 0} if given.nodes else {}), **given.params}
    for data in given.data or (STREAMS if given.nodes else LINKS):
        matrix = matrix_of(given, data)
        run_matrix(matrix, given.out)
        keys = {cell.key for cell in cells(matrix)}
        rows = [row for row in read_results(given.out) if tuple(row[name] for name in IDENTITY) in keys]
        print(f"\n{data}\n")
        if given.nodes:
            names = ("zero", "mean", "persistence", "age_persistence")
            print(table(rows, {"MSE": "mse"}, {name: name for name in names}))
        else:
            figures = {"AP": "ap", "historical": "historical_ap", "MRR": "mrr"}
            baselines = {
                "Recency": "recency", "Recency × popularity": "recency_popularity", "EdgeBank": "edgebank",
            }  # fmt: skip
            print(table(rows, figures, baselines), flush=True)


if __name__ == "__main__":
    main()
