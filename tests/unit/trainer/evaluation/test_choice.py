"""``evaluate`` with ``strategy: auto`` and ``lane: auto``: it measures on the training part alone, and leaves no trace."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from labels_of_nodes import labels_file
from offline_protocol import SHARES, config_for, write_events
from structlog.testing import capture_logs

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.evaluation import choice
from freshet_graph.trainer.evaluation.evaluate import evaluate
from freshet_graph.trainer.session.measurement import trial_seconds
from freshet_graph.trainer.strategies.cost_model import GAIN
from freshet_graph.trainer.validation import require_evaluable

SNAPSHOT = {"model": "sage-linear", "model_params": {"hidden": 8, "signature": 8}, "window": 3}
CLOCK = (
    "train_s",
    "wait_s",
    "rank_cpu_s",
    "comm_seconds",
    "epoch_s",
    "peak_mib",
    "training",
    "transfer_bytes",
)


@pytest.fixture
def data(tmp_path: Path) -> str:
    return write_events(tmp_path / "events.parquet")


def judged(data: str, **keys: object) -> dict[str, Any]:
    result = evaluate(config_for(**keys), data, shares=SHARES)
    assert result is not None
    return result


def prices(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> list[Any]:
    """Instead of measured seconds, which depend on the machine; where each strategy was measured."""
    seen: list[Any] = []

    def of(session: Any, examples: Any) -> list[float]:
        assert trial_seconds(session, examples), "it learns something"
        seen.append((session.config.strategy, examples.tau, int(examples.times.max())))
        return [seconds[session.config.strategy]]

    monkeypatch.setattr(choice, "trial_seconds", of)
    return seen


def figures_of(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result["runs"][0].items() if key not in CLOCK}


TASKS = [
    pytest.param({**SNAPSHOT}, "vertex", id="links"),
    pytest.param({}, "sequential", id="event-model"),
    pytest.param({**SNAPSHOT, "task": "node-regression"}, "vertex", id="node-regression"),
    pytest.param(
        {
            **SNAPSHOT,
            "model": "tgcn",
            "task": "node-classification",
            "task_params": {"labels": labels_file()},
        },
        "whole",
        id="node-classification",
    ),
]


@pytest.mark.parametrize(("keys", "expected"), TASKS)
def test_what_was_measured_leaves_no_trace_in_the_figures(
    keys: dict[str, Any], expected: str, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices(monkeypatch, whole=2.0, vertex=1.0, sequential=1.0)
    chosen = judged(data, **{**keys, "strategy": "auto"})
    assert chosen["strategy"] == expected
    assert min(chosen["predicted_s"].values()) > 0
    named = judged(data, **{**keys, "strategy": expected})
    assert figures_of(chosen) == figures_of(named)
    assert "predicted_s" not in named


@pytest.mark.parametrize(("vertex", "expected"), [(0.85, "vertex"), (0.95, "whole"), (1.05, "whole")])
def test_of_strategies_that_cost_about_the_same_the_first_is_taken(
    vertex: float, expected: str, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "volume", lambda *_: type("Volume", (), {"work": 1.0}))
    monkeypatch.setattr("freshet_graph.trainer.strategies.cost_model.FIXED", 1.0)  # no size counts
    prices(monkeypatch, whole=1.0, vertex=vertex)
    with capture_logs() as logs:
        result = judged(data, **SNAPSHOT, strategy="auto")
    assert result["strategy"] == expected
    assert result["predicted_s"] == {"whole": 1.0, "snapshot": 1.0, "vertex": pytest.approx(vertex)}
    (said,) = [line for line in logs if line["event"] == "the strategy is chosen"]
    assert said["reason"] == result["reason"]
    beginning = "whole stays" if GAIN < vertex < 1 else f"{expected} is predicted to need least"
    assert result["reason"].startswith(beginning)


def test_nothing_after_the_training_part_decides(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files that differ in who meets later: the same snapshot is measured, and the same seconds are predicted."""
    table = pq.read_table(data)
    t = table["t"].to_numpy()
    border = np.quantile(t[table["op"].to_numpy() == 1], SHARES[0])
    src, later = table["src"].to_numpy().copy(), t > border
    src[later] = src[later][0]
    pq.write_table(table.set_column(0, "src", pa.array(src)), tmp_path / "other.parquet")
    seen = prices(monkeypatch, snapshot=1.0, whole=1.0, vertex=1.0)
    keys = {**SNAPSHOT, "strategy": "auto", "lane": "auto", "parts": 2}
    one, other = judged(data, **keys), judged(str(tmp_path / "other.parquet"), **keys)
    assert one["predicted_s"] == other["predicted_s"]
    assert (one["lane"], one["reason"]) == (other["lane"], other["reason"])
    assert one["ap"] != other["ap"]
    assert seen[:2] == seen[2:]
    assert all(newest_us <= border * 1e6 for _, _, newest_us in seen)


def test_the_lane_is_that_of_least_cost_and_gives_the_figures_of_its_algorithm(data: str) -> None:
    keys = {**SNAPSHOT, "strategy": "vertex", "parts": 2}
    with capture_logs() as logs:
        chosen = judged(data, **keys, lane="auto")
    (said,) = [line for line in logs if line["event"] == "the lane is chosen"]
    assert said["lane"] == chosen["lane"]
    assert all(name in said["reason"] for name in choice.LANES["snapshot"])
    assert figures_of(chosen) == figures_of(judged(data, **keys, lane=chosen["lane"]))


def test_with_one_part_and_for_event_models_there_are_fewer_lanes() -> None:
    assert choice.lanes_of(config_for(lane="auto"), 1) == ("sep",)
    assert choice.lanes_of(config_for(lane="auto"), 2) == choice.LANES["event"]
    assert choice.lanes_of(config_for(**SNAPSHOT, lane="auto"), 2) == choice.LANES["snapshot"]
    assert choice.lanes_of(config_for(lane="hdrf"), 2) == ["hdrf"]


def test_a_training_part_of_one_snapshot_takes_the_first_strategy(data: str) -> None:
    result = judged(data, **SNAPSHOT, strategy="auto", interval_s=1e6)
    assert (result["strategy"], result["predicted_s"]) == ("whole", {})
    assert "no training snapshot could be learned" in result["reason"]


def test_refusals_name_the_key() -> None:
    def refuse(**keys: object) -> None:
        require_evaluable(TrainerConfig.model_validate({"model": "sage-linear", **keys}), 1)

    refuse(strategy="auto", lane="auto")
    with pytest.raises(Failure, match="key lane_params: lane auto has no parameters"):
        refuse(strategy="vertex", lane="auto", lane_params={"fanout": 5})
    with pytest.raises(Failure, match="key strategy_params: strategy auto has no parameters"):
        refuse(strategy="auto", lane="hash", strategy_params={"steps": 2})
