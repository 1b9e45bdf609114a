"""Scores on arrival: each event with the memory of all before it, however they are cut into commits and runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from exporting_trainers import ONCE
from small_trainers import config_for, run
from trainer_streams import make_lane, meetings

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.arrivals import Arrivals
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.arrival import memory as module
from freshet_graph.trainer.arrival.memory import ArrivalMemory
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.checkpoint import newest_checkpoint

SMALL = {"memory": 8, "time_width": 8}
MODELS = {
    "tgn-history": {},
    "tgn": {"neighbours": 3, "heads": 2},
    "two-layers": {"neighbours": 3, "layers": 2},
    "jodie": {},
    "dyrep": {"neighbours": 3},
    "tige": {"neighbours": 3},
}


def trained(folder: Path, name: str = "tgn-history", snapshots: int = 3) -> TrainerConfig:
    make_lane(folder / "store", events=meetings(nodes=60))
    model = "tgn" if name == "two-layers" else name
    config = config_for(
        folder, model=model, strategy="sequential", optimisation=ONCE, model_params={**SMALL, **MODELS[name]}
    )
    run(config, snapshots=snapshots)
    return config


def memory(config: TrainerConfig, **more: Any) -> ArrivalMemory:
    lane = LaneReader(config.store, config.lane)
    newest = newest_checkpoint(config, lane)
    assert newest is not None
    return ArrivalMemory(config, lane, Ranks(), newest[1], **more)


def later(config: TrainerConfig, after: int = 2) -> list[pa.Table]:
    return [one.events for one in Arrivals(LogReader(config.store), after=after).new()]


@pytest.mark.parametrize("name", MODELS)
def test_runs_give_what_events_one_by_one_give(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = trained(tmp_path, name)
    commits = later(config)
    sizes: list[int] = []
    apart = module._apart

    def counted(*given: Any) -> int:
        sizes.append(apart(*given))
        return sizes[-1]

    monkeypatch.setattr(module, "_apart", counted)
    together = [memory_of.take(events) for memory_of in [memory(config)] for events in commits]
    assert name == "two-layers" or max(sizes) > 1, "some events were scored together"
    monkeypatch.setattr(module, "RUN", 1)
    alone = [memory_of.take(events) for memory_of in [memory(config)] for events in commits]
    pieces = [events.slice(row, 1) for events in commits for row in range(len(events))]
    cut = [memory_of.take(events) for memory_of in [memory(config)] for events in pieces]
    for other in (alone, cut):
        for column in ("score", "encounters"):
            first, second = (
                np.concatenate([getattr(one, column) for one in many]) for many in (together, other)
            )
            np.testing.assert_allclose(first, second, rtol=2e-4, atol=2e-5)
    assert np.std(np.concatenate([one.score for one in together])) > 0


def test_the_same_commits_give_the_same_bits_scored_or_not(tmp_path: Path) -> None:
    config = trained(tmp_path)
    *before, last = later(config)
    scored, passed = memory(config, vectors=True), memory(config)
    for events in before:
        scored.take(events)
        assert passed.take(events, scored=False) is None
    one, other = scored.take(last), passed.take(last)
    assert one is not None and other is not None
    assert one.score.tobytes() == other.score.tobytes()
    assert other.vectors is None and one.vectors is not None
    assert one.vectors.shape == (len(one.score), 2 * SMALL["memory"])


def test_the_past_of_an_event_ends_just_before_it(tmp_path: Path) -> None:
    """Equal times, and times that go back, are in order of arrival."""
    config = trained(tmp_path)
    events = later(config)[0].slice(0, 3)
    t = events["t"][0].as_py()
    columns = {"src": [1, 2, 1], "dst": [2, 1, 2], "t": [t, t, t - 5_000_000], "op": [1, 1, 1]}
    for name, values in columns.items():
        field = events.schema.field(name)
        events = events.set_column(events.schema.get_field_index(name), field, pa.array(values, field.type))
    past = memory(config)
    scored = past.take(events)
    assert scored is not None
    pair, reverse, count, back = (scored.encounters[:, column] for column in (0, 1, 6, 7))
    assert count[2] == back[1] == count[0] + 1
    assert reverse[1] == pytest.approx(1e-6) and pair[2] == pytest.approx(2e-6)


def test_from_an_empty_memory_with_the_same_weights(tmp_path: Path) -> None:
    config = trained(tmp_path)
    fresh = memory(config, learned=False)
    first = fresh.take(later(config, after=-1)[0])
    assert first is not None
    assert np.isinf(first.encounters[0, :6]).all()
