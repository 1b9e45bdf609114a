"""The matrix of all snapshot models on a data set: python benchmarks/snapshot_accuracy.py [NAME] > matrix.yaml.

``freshet-trainer evaluate --matrix matrix.yaml --out results.parquet --figure ap`` then runs what is missing and prints the table
of a figure. Every registered snapshot model is trained under ``whole``, with and without what is known beside the graph
(``-bare``), of links (collegemsg in snapshots of a day, bitcoin_otc and jodie_wikipedia in a hundred, beside ``tgn-history``), or
of nodes (the streams of node_streams.py, whose file is made in ``--folder``).

``--edge-life`` has snapshots (default of links: without end). ``--params`` has parameters of models, each for those that have
it, such as '{layers: 1, signature: 64}'.
"""

import sys
from pathlib import Path
from typing import Any

import harness
import yaml
from harness import snapshot_models
from node_streams import STREAMS, written

from freshet_graph.schemas.matrix import Matrix
from freshet_graph.trainer.models.interface import MODELS

LINKS: dict[str, dict[str, Any]] = {
    "collegemsg": {"interval_s": 86_400},
    "bitcoin_otc": {},
    "jodie_wikipedia": {},
}
EVENTS = {"model": "tgn-history", "strategy": "sequential", "optimisation": {"batch_size": 200, "epochs": 3}}


def matrix_of(given: Any) -> Matrix:
    """The cells of a data set."""
    name, of_nodes = given.data, given.data in STREAMS
    optimisation = {"batch_size": 200, "epochs": given.epochs, "learning_rate": given.rate}
    config = {"strategy": "whole", "window": 4, "strategy_params": {"steps": 1}, "optimisation": optimisation}
    if of_nodes:
        path, keys = written(name, given.folder)
        config["task"], split = keys.pop("task", "node-regression"), STREAMS[name].split
        source = {"file": str(path), "config": keys}
    else:
        keys = LINKS[name] | ({"edge_life": given.edge_life} if given.edge_life else {})
        source, split = {"file": str(harness.DATA / f"{name}.parquet"), "config": keys}, "0.7,0.15,0.15"
    usual = {"hidden": 64, **({"signature": 0} if of_nodes else {}), **given.params}
    models = []
    for model in given.models:
        options = MODELS.find(model).Options.model_fields
        params = {key: value for key, value in usual.items() if key in options}
        for bare in (False, True):
            own = {**config, "model": model, "model_params": {**params, "encounters": not bare}}
            models.append({"name": model + "-bare" * bare, "config": own})
    if not of_nodes:
        models.append({"name": "tgn-history", "config": EVENTS})
    return Matrix.model_validate({"data": [source], "models": models, "seeds": given.seeds, "split": split})


def main() -> None:
    data = {"nargs": "?", "default": "collegemsg", "choices": [*LINKS, *STREAMS]}
    given = harness.options(
        __doc__, {"data": data}, quiet=True, models=snapshot_models(), seeds=[0, 1, 2], epochs=5, rate={"type": float},
        params={"type": yaml.safe_load, "default": {}}, edge_life={"type": int}, folder=Path(),
    )  # fmt: skip
    yaml.safe_dump(matrix_of(given).model_dump(exclude_defaults=True), sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
