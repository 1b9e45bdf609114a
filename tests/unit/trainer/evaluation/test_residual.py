"""``residual: true``: a model with attention sees a node's own activity, however many neighbours blend it away."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from offline_protocol import SHARES, config_for

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.trainer.evaluation.evaluate import evaluate

SIDE, SNAPSHOTS, A_SNAPSHOT = 24, 40, 60


def busy_destinations(path: Path) -> str:
    """All pairs meet in the first snapshot. Later events go to the destinations that were busy in the snapshot before.

    So neighbourhoods are all alike, and only the own activity of a destination tells where events go.
    """
    rng = np.random.default_rng(0)
    busy = rng.permutation(SIDE)
    src, dst = (side.ravel() for side in np.meshgrid(np.arange(SIDE), np.arange(SIDE)))
    parts = [(src, dst, np.zeros(SIDE * SIDE))]
    for tau in range(1, SNAPSHOTS):
        busy[rng.integers(SIDE)], busy[0] = busy[0], busy[rng.integers(SIDE)]
        chosen = rng.integers(0, SIDE, A_SNAPSHOT), busy[rng.integers(0, SIDE // 4, A_SNAPSHOT)]
        parts.append((*chosen, tau + np.sort(rng.random(A_SNAPSHOT))))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    pq.write_table(pa.table({"src": columns[0], "dst": columns[1] + SIDE, "t": columns[2]}), path)
    return str(path)


def test_a_residual_shows_what_neighbours_blend_away(tmp_path: Path) -> None:
    data = busy_destinations(tmp_path / "events.parquet")
    ap = {}
    for residual in (False, True):
        params = {"hidden": 16, "signature": 0, "layers": 1, "encounters": False, "residual": residual}
        config = config_for(
            model="gatlstm",
            strategy="whole",
            model_params=params,
            window=2,
            interval_s=1.0,
            optimisation=Optimisation(epochs=3),
        )
        result = evaluate(config, data, shares=SHARES)
        assert result is not None
        ap[residual] = result["ap"]
    assert ap[True] > ap[False] + 0.2, ap
