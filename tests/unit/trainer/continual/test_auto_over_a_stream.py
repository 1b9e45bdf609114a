"""``strategy: auto`` over streams: λ that crosses over half-way changes the strategy once, a stationary stream rarely."""

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from small_trainers import config_for, lines, trainer_for
from thread_ranks import side_by_side
from trainer_invoked import invoke, write
from trainer_streams import SECOND, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.trainer_config import Optimisation, TrainerConfig
from freshet_graph.stream.kernels.mixing import mixed_part
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual.auto import BEFORE, AutoStrategy
from freshet_graph.trainer.session import measurement
from freshet_graph.trainer.strategies.cost_model import FAMILIES, IN_A_ROW, LEAST_BETWEEN, Passes, volume

NODES, EVENTS, EDGE_LIFE, SNAPSHOTS, HALF = 100, 16, 8, 48, 26


def within_parts_or_across(folder: Path, is_foreign: Callable[[int], bool]) -> LaneReader:
    """A lane of two parts, whose edges stay within a part or join both, snapshot by snapshot."""
    rng = np.random.default_rng(0)
    owner = np.array([mixed_part(0, node, 2) for node in range(NODES)])  # as the partitioner hash has it
    rows: list[dict[str, object]] = [
        {"op": 0, "src": node, "t": 0, "features": [1.0]} for node in range(NODES)
    ]  # dense ids in the order of names
    for tau in range(SNAPSHOTS):
        for _ in range(EVENTS if tau else 5 * EVENTS):  # as many edges live from the start as later
            src = int(rng.integers(NODES))
            others = np.flatnonzero((owner != owner[src]) == is_foreign(tau))
            dst = int(rng.choice(others[others != src]))
            rows.append({"op": 1, "src": src, "dst": dst, "t": tau * SECOND + 1})
    columns = {
        name: [row.get(name, 1.0 if name == "weight" else None) for row in rows]
        for name in event_schema("int").names
    }
    lane = Lane(name="hash", algorithm="hash", parts=2, edge_life=EDGE_LIFE)
    events = pa.table(columns, schema=event_schema("int"))
    build_store(events, folder, interval_us=SECOND, lanes=[lane], graph="meetings", node_features=1)
    return LaneReader(folder, "hash")


def set_rates(monkeypatch: pytest.MonkeyPatch, noise: float = 0.0, **rates: float) -> None:
    """Measure seconds of a unit of work by these rates instead of the clock, and no seconds on the link."""

    def measured(self: Any, name: str, _: float) -> None:
        work = volume(name, self._setup, self._load).work
        draws = getattr(self, "_draws", None) or np.random.default_rng(0)
        self._draws = draws
        self._passes.add(name, rates[FAMILIES[name]] * work * draws.lognormal(0, noise), work)

    monkeypatch.setattr(AutoStrategy, "_measured", measured)
    monkeypatch.setattr(measurement, "measured_link", lambda _: (0.0, 0.0))


def changes_of(config: TrainerConfig) -> list[tuple[int, str]]:
    """Sequence and strategy of each line whose strategy is not that of the line before."""
    return [
        (later["sequence"], later["strategy"])
        for earlier, later in pairwise(lines(config))
        if later["strategy"] != earlier["strategy"]
    ]


def followed(config: TrainerConfig, *, ranks: int) -> list[tuple[int, bool]]:
    """Sequence of each border at which a new session took over, and whether it has the weights of the old one."""

    def work(own: Any) -> list[tuple[int, bool]]:
        trainer, taken = trainer_for(config, own), []
        at_border = trainer._auto.at_border

        def watched(session: Any, manifest: Any) -> Any:
            before = {name: value.clone() for name, value in session.model.state_dict().items()}
            following = at_border(session, manifest)
            if following is not session:
                after = following.model.state_dict()
                taken.append((manifest.sequence, all(after[name].equal(before[name]) for name in before)))
            return following

        trainer._auto.at_border = watched
        for manifest in trainer.lane.manifests:
            trainer.step(manifest)
        return taken

    first, *others = side_by_side(ranks, work, turn=threading.Lock())
    assert all(other == first for other in others)
    return first


@pytest.mark.slow
@pytest.mark.parametrize(("rises", "rate"), [(True, 1.35e-6), (False, 1.07e-6)], ids=["rises", "falls"])
def test_a_stream_whose_lambda_crosses_over_half_way_changes_once_and_keeps_its_weights(
    rises: bool, rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = within_parts_or_across(tmp_path / "store", lambda tau: (tau >= HALF) == rises)
    foreign = [manifest.quality.foreign_parts for manifest in lane.manifests]
    low, high = (foreign[HALF - 1], foreign[-1]) if rises else (foreign[-1], foreign[HALF - 1])
    assert low < 0.1 < 0.9 < high
    set_rates(monkeypatch, whole=1e-6, vertex=rate)
    keys = {"model_params": {"hidden": 8, "signature": 8, "fanouts": [1]}, "checkpoint_every": 1000}
    optimisation = Optimisation(epochs=1, batch_size=1000, learning_rate=0.01)
    config = config_for(tmp_path, strategy="auto", optimisation=optimisation, **keys)
    borders = followed(config, ranks=2)
    changes = changes_of(config)
    assert borders == [(sequence, True) for sequence, _ in changes]
    names = ["vertex", "snapshot"] if rises else ["snapshot", "vertex"]
    first = [] if names[0] == "snapshot" else [(BEFORE, names[0])]
    assert changes[: len(first)] == first
    ((sequence, name),) = changes[len(first) :]
    assert name == names[1]
    assert HALF + IN_A_ROW <= sequence <= HALF + EDGE_LIFE + Passes.LAST + IN_A_ROW
    reasons = {line["sequence"]: line["reason"] for line in lines(config) if "reason" in line}
    assert list(reasons) == [BEFORE, sequence]
    assert reasons[sequence].startswith(f"{name} is predicted to need least")


@pytest.mark.slow
def test_a_stationary_stream_changes_at_most_once_in_twenty_snapshots_however_noisy_its_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    within_parts_or_across(tmp_path / "store", lambda _: False)
    set_rates(monkeypatch, noise=1.0, whole=1e-6, vertex=1e-6)
    config = config_for(tmp_path, strategy="auto", checkpoint_every=1000)
    assert all(kept for _, kept in followed(config, ranks=1))
    assert all(later - earlier >= LEAST_BETWEEN for (earlier, _), (later, _) in pairwise(changes_of(config)))


@pytest.mark.slow
def test_by_the_real_clock_it_says_what_it_chose_and_changes_at_most_once_in_twenty_snapshots(
    tmp_path: Path,
) -> None:
    """Which strategy is faster depends on the machine; nothing here does."""
    lane = Lane(name="hash", algorithm="hash", parts=2)
    events = meetings(snapshots=30, a_snapshot=40, features=False)
    build_store(events, tmp_path / "store", interval_us=SECOND, lanes=[lane], graph="meetings")
    keys = {"store": str(tmp_path / "store"), "strategy": "auto", "lane": "auto"}
    code, result, error = invoke("run", "--config", write(tmp_path, **keys), "--until-idle", "0")
    assert code == 0, error
    config = config_for(tmp_path, strategy="auto")
    strategies = [line["strategy"] for line in lines(config)]
    assert len(strategies) == result["snapshots"] == 30
    assert strategies[:BEFORE] == ["whole"] * BEFORE
    changes = changes_of(config)
    assert all(later - earlier >= LEAST_BETWEEN for (earlier, _), (later, _) in pairwise(changes))
    assert (result["lane"], result["strategy"]) == ("hash", strategies[-1])
    assert result["predicted_s"].keys() == {"whole", "snapshot", "vertex"}
    assert result["reason"].startswith(strategies[-1])
    assert invoke("inspect", "--config", str(tmp_path / "trainer.yaml"))[1] == result
    assert [line["sequence"] for line in lines(config) if "reason" in line] == sorted(
        {BEFORE, *(sequence for sequence, _ in changes)}
    )
