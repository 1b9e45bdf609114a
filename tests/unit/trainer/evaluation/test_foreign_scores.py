"""A file of scores with very many rows: what is not asked for stays Arrow's."""

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from freshet_graph.trainer.evaluation.foreign_scores import ForeignScores

ROWS, CANDIDATES = 20_000, 20


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Rows in any order; each but every seventh has the scores (event, event + 1, …) of its candidates."""
    event = np.random.default_rng(3).permutation(ROWS) + 5
    lists = [
        None if number % 7 == 0 else list(range(number, number + CANDIDATES)) for number in event.tolist()
    ]
    score = event.astype(np.float64)
    return pa.table(
        {"event": event, "score": score, "random_score": -score, "candidate_scores": pa.array(lists)}
    )


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_candidates_are_found_in_any_order_and_row_group(
    table: pa.Table, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"s.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path, row_group_size=999)
    else:
        texts = [" ".join(map(str, row or ())) for row in table["candidate_scores"].to_pylist()]
        pyarrow.csv.write_csv(table.set_column(3, "candidate_scores", pa.array(texts)), path)
    asked = np.array([6, 5 + ROWS - 1, 8, 10_001, 10_002])
    found = ForeignScores(path).candidates(asked, CANDIDATES)
    assert found.tolist() == [list(range(event, event + CANDIDATES)) for event in asked.tolist()]


def test_lists_that_nobody_asks_for_are_not_unpacked(table: pa.Table, tmp_path: Path) -> None:
    pq.write_table(table, tmp_path / "s.parquet")
    tracemalloc.start()
    try:
        scores = ForeignScores(tmp_path / "s.parquet")
        scores.candidates(np.array([6]), CANDIDATES)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / ROWS < 150, "some numbers a row; unpacked, a row's list alone takes 700 bytes"
