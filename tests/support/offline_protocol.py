"""A small file and the configuration that evaluates it."""

from pathlib import Path

import pyarrow.parquet as pq
from trainer_streams import meetings

from freshet_graph.schemas.trainer_config import Optimisation, TrainerConfig

SHARES = (0.6, 0.2, 0.2)

BASELINES = tuple(
    f"{scorer}_{figure}"
    for scorer in ("edgebank", "edgebank_window", "recency", "recency_popularity")
    for figure in ("ap", "historical_ap")
)

FIGURES = ("ap", "auc", "mrr", "hits_at_10", "transductive_ap", "historical_ap", *BASELINES)


def config_for(**more: object) -> TrainerConfig:
    values = {
        "lane": "hash",
        "model": "tgn",
        "strategy": "sequential",
        "model_params": {"memory": 8, "time_width": 8},
        "optimisation": Optimisation(epochs=1, batch_size=50, learning_rate=0.01),
        "interval_s": 1.0,
        **more,
    }
    return TrainerConfig.model_validate(values)


def write_events(path: Path, *, seed: int = 0) -> str:
    events = meetings(seed=seed, snapshots=10, a_snapshot=40, features=False)
    table = events.select(["src", "dst", "op"]).append_column(
        "t", [[t / 1e6 for t in events["t"].to_pylist()]]
    )
    pq.write_table(table, path)
    return str(path)
