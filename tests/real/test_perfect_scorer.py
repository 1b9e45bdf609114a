"""A scorer that knows exactly what happens has AP, AUC and MRR of 1: no negative is a true event of the same time."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from offline_protocol import config_for
from real_data import DATA, real_file

from freshet_graph.trainer.data.history import Inserts
from freshet_graph.trainer.data.negatives import NONE, Draw, NegativePool
from freshet_graph.trainer.evaluation.evaluate import evaluate

FILES = sorted(path.name for path in DATA.glob("*.parquet"))

pytestmark = pytest.mark.real


def perfect_scores(data: Path, negatives: str, to: Path) -> str:
    """Scores of every row of a file of negatives: 1 for what happens at the row's time, else 0."""
    events = pq.read_table(data)
    if "op" in events.column_names:
        events = events.filter(pc.equal(events["op"], 1))
    table = pq.read_table(negatives)
    t = events["t"].to_numpy() * 1_000_000
    happened = set(zip(events["src"].to_pylist(), events["dst"].to_pylist(), t.tolist(), strict=True))

    def known(src: list, dst: list) -> list[float]:
        return [float(each in happened) for each in zip(src, dst, table["t"].to_pylist(), strict=True)]

    src = table["src"].to_pylist()
    rows = zip(src, table["t"].to_pylist(), table["candidates"].to_pylist(), strict=True)
    candidates = [
        None if row is None else [float((u, v, at) in happened) for v in row] for u, at, row in rows
    ]
    scores = pa.table(
        {
            "event": table["event"],
            "score": known(src, table["dst"].to_pylist()),
            "random_score": known(src, table["random"].to_pylist()),
            "historical_score": known(
                table["historical_src"].to_pylist(), table["historical_dst"].to_pylist()
            ),
            "candidate_scores": pa.array(candidates, pa.list_(pa.float64())),
        }
    )
    pq.write_table(scores, to)
    return str(to)


def require_perfect(name: str, folder: Path) -> None:
    data, negatives = real_file(name), str(folder / "negatives.parquet")
    config = config_for(interval_s=None)
    unscored = pa.table({"event": pa.array([], pa.int64()), "score": [], "random_score": []})
    pq.write_table(unscored, folder / "none.parquet")
    with pytest.raises(Exception, match="lacks"):  # the negatives are drawn first
        evaluate(config, data, negatives=negatives, scores=str(folder / "none.parquet"))
    scores = perfect_scores(data, negatives, folder / "scores.parquet")
    found = evaluate(config, data, negatives=negatives, scores=scores)
    assert found is not None
    assert found["ap"] == found["auc"] == found["mrr"] == found["historical_ap"] == 1


@pytest.mark.parametrize("name", ["uslegis.parquet", "canparl_votes.parquet"])
def test_a_perfect_scorer_gets_one_where_sources_meet_many_at_a_time(name: str, tmp_path: Path) -> None:
    require_perfect(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_perfect_scorer_gets_one_on_every_file(name: str, tmp_path: Path) -> None:
    require_perfect(name, tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_no_negative_of_a_real_file_happens_at_its_time(name: str) -> None:
    table = pq.read_table(real_file(name), columns=["src", "dst", "t"]).drop_null().slice(0, 150_000)
    src, dst, t = (table[column].to_numpy().astype(np.int64) for column in ("src", "dst", "t"))
    order = np.argsort(t, kind="stable")
    events = Inserts(src[order], dst[order], t[order], t < t.min())
    negatives = NegativePool(events, np.unique(dst))
    drawn = negatives.draw(np.arange(len(events)), 1, Draw(0, 0, 0))[:, 0]
    there = drawn != NONE
    np.testing.assert_array_equal(there, negatives.possible)
    moment = np.cumsum(np.diff(events.visible_us, prepend=events.visible_us[0]) != 0)
    wide = int(max(src.max(), dst.max())) + 1
    happened = (moment * wide + events.src) * wide + events.dst
    assert not np.isin(((moment * wide + events.src) * wide + drawn)[there], happened).any()
