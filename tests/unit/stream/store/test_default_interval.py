"""Snapshots of a file without an interval: a hundredth of its span, which a few stray rows cannot stretch."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.store.from_file import build_store, default_interval
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.evaluation.evaluate import evaluate
from freshet_graph.trainer.ranks import Ranks

DAY = 86_400


def meetings(folder: Path, *stray: int) -> Path:
    """Five events a day for a hundred days of 2005, and single rows at other seconds."""
    t = np.sort(np.append(np.arange(500) * DAY // 5 + 1_125_000_000, stray)).astype(np.int64)
    drawn = np.random.default_rng(0).integers(0, 20, (2, len(t)))
    path = folder / "meetings.parquet"
    pq.write_table(pa.table({"src": drawn[0], "dst": 20 + drawn[1], "t": t}), path)
    return path


def evaluated(file: Path) -> tuple[int, list[str]]:
    """Snapshots of an evaluation by the default interval, and what was warned of."""
    config = TrainerConfig.model_validate(
        {
            "lane": "hash", "model": "sage-linear", "strategy": "vertex", "window": 1,
            "model_params": {"hidden": 4, "signature": 2}, "optimisation": {"epochs": 1},
        }
    )  # fmt: skip
    with capture_logs() as logs:
        result = evaluate(config, file, Ranks(), shares=(0.7, 0.15, 0.15), seeds=1)
    assert result is not None
    return result["snapshots"], [line["event"] for line in logs if line["log_level"] == "warning"]


def test_one_row_of_1970_does_not_put_all_others_into_a_few_snapshots(tmp_path: Path) -> None:
    snapshots, warned = evaluated(meetings(tmp_path, 0))
    assert 99 <= snapshots <= 103
    assert len(warned) == 1 and "Set interval_s" in warned[0]


def test_a_file_without_stray_rows_has_a_hundred_snapshots_without_a_word(tmp_path: Path) -> None:
    with capture_logs() as logs:
        store = build_store(meetings(tmp_path), tmp_path / "store", interval_us=None, lanes=[])
    assert len(LogReader(store).snapshots) in (100, 101)
    assert not [line for line in logs if line["log_level"] == "warning"]


@pytest.mark.parametrize("stray", [0, 2 * 1_125_000_000])
def test_the_interval_is_a_hundredth_of_what_is_left_without_the_stray_row(stray: int) -> None:
    near = np.arange(500) * DAY
    found = default_interval(np.append(near + 1_125_000_000, stray) * 1_000_000)
    assert found == pytest.approx(5 * DAY * 1_000_000, rel=0.01)


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        ([], 1),
        ([7], 1),
        ([7, 7, 7, 7, 7], 1),
        ([0, 250], 3),
        ([0, 1000, 1000, 1000, 1000], 10),  # all others have one time: no narrower interval would part them
        ([*range(0, 2000, 10), 19_000], 190),  # the others have ten snapshots of their own
    ],
)
def test_times_that_tell_nothing_else_keep_a_hundredth_of_their_span(t: list[int], expected: int) -> None:
    with capture_logs() as logs:
        assert default_interval(np.array(t, np.int64)) == expected
    assert not logs


def test_the_order_of_rows_does_not_matter() -> None:
    t = np.append(np.arange(3000) + 10**9, [0, 1, 2])
    assert default_interval(np.random.default_rng(1).permutation(t)) == default_interval(t) == 30
