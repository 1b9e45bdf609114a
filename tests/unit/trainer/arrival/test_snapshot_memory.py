"""Scores on arrival of snapshot models: embeddings after the last sealed snapshot, encounters as of the event."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exporting_trainers import ONCE
from small_trainers import config_for, run
from trainer_streams import SECOND, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.store import from_file
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.arrivals import Arrivals, Arrived
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.arrival.memory import Scored
from freshet_graph.trainer.arrival.scorer import NOTHING, Scorer
from freshet_graph.trainer.arrival.snapshots import SnapshotMemory
from freshet_graph.trainer.exports.predictor import Predictor
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.checkpoint import newest_checkpoint

LEARNED = 3
STRATEGIES: dict[str, dict[str, Any]] = {
    "vertex": {"model": "sage-linear", "model_params": {"hidden": 8, "signature": 8}},
    **{
        name: {"model": "cdgcn", "model_params": {"hidden": 8, "signature": 8}}
        for name in ("whole", "group", "snapshot", "hybrid")
    },
}
EACH = pytest.mark.parametrize("name", STRATEGIES)


def trained(folder: Path, name: str, snapshots: int = LEARNED) -> TrainerConfig:
    """A store of six snapshots, a commit each, of which a trainer has learned some."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(from_file, "SNAPSHOTS_A_COMMIT", 1)
        lane = Lane(name="hash", algorithm="hash", parts=2)
        from_file.build_store(
            meetings(nodes=60), folder / "store", interval_us=SECOND, lanes=[lane], graph="g"
        )
    config = config_for(folder, strategy=name, optimisation=ONCE, **STRATEGIES[name])
    run(config, snapshots=snapshots)
    return config


def memory(config: TrainerConfig, **more: Any) -> SnapshotMemory:
    lane = LaneReader(config.store, config.lane)
    newest = newest_checkpoint(config, lane)
    assert newest is not None
    return SnapshotMemory(config, lane, Ranks(), newest[1], **more)


def commits(config: TrainerConfig, after: int = LEARNED - 1) -> list[Arrived]:
    return list(Arrivals(LogReader(config.store), after=after).new())


@EACH
def test_a_score_can_be_computed_again_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Whether the commits before it were scored or not; and each has the snapshot before it."""
    config = trained(tmp_path, name)
    live, found = memory(config, vectors=True), list[Scored]()
    for arrived in commits(config):
        live.before(arrived.commit)
        scored = live.take(arrived.events)
        assert scored is not None
        assert np.isfinite(scored.score).all()
        found.append(scored)
    assert [scored.snapshot for scored in found] == [2, 3, 4]
    again = memory(config)
    *before, last = commits(config)
    for arrived in before:
        assert again.take(arrived.events, scored=False) is None
    again.before(last.commit)
    scored = again.take(last.events)
    assert scored is not None
    assert (scored.score.tobytes(), scored.encounters.tobytes()) == (
        found[-1].score.tobytes(), found[-1].encounters.tobytes(),
    )  # fmt: skip
    assert found[-1].vectors is not None and found[-1].vectors.shape == (
        len(scored.score),
        2 * live.model.width,
    )


@EACH
def test_the_first_event_after_the_checkpoint_has_the_predictors_score(name: str, tmp_path: Path) -> None:
    config = trained(tmp_path, name)
    arrived = commits(config)[0]
    live = memory(config)
    live.before(arrived.commit)
    scored = live.take(arrived.events)
    assert scored is not None and scored.snapshot == LEARNED - 1
    row = int(scored.rows[0])
    src, dst, t = (arrived.events[column][row].as_py() for column in ("src", "dst", "t"))
    ((_, expected),) = Predictor(config).rank(src, [dst], t=t / SECOND)
    assert scored.score[0] == pytest.approx(expected, rel=1e-5)


def test_encounters_are_of_the_events_before_in_the_same_commit_too(tmp_path: Path) -> None:
    config = trained(tmp_path, "vertex")
    live = memory(config)
    arrived = commits(config)[0]
    twice = arrived.events.filter(np.array(arrived.events["op"]) == 1).take([0, 0, 1])
    live.before(arrived.commit)
    scored = live.take(twice)
    assert scored is not None
    assert scored.encounters[1, 6] == scored.encounters[0, 6] + 1
    assert scored.encounters[1, 0] == pytest.approx(1e-6)
    assert scored.score[0] != scored.score[1]


def test_a_new_node_has_the_embedding_of_the_next_one(tmp_path: Path) -> None:
    config = trained(tmp_path, "vertex")
    live = memory(config, vectors=True)
    arrived = commits(config)[0]
    events = arrived.events.filter(np.array(arrived.events["op"]) == 1).slice(0, 2)
    place = events.schema.get_field_index("dst")
    events = events.set_column(place, events.schema.field("dst"), [[1_000, 1_001]])
    live.before(arrived.commit)
    scored = live.take(events)
    assert scored is not None and scored.vectors is not None
    width = live.model.width
    assert scored.vectors[0, width:].tobytes() == scored.vectors[1, width:].tobytes()


def test_without_a_sealed_snapshot_there_is_no_score(tmp_path: Path) -> None:
    """And the scorer begins so with an old log, whose events the weights have learned."""
    config = trained(tmp_path, "vertex", snapshots=6)
    scorer, found = Scorer(config, Ranks(), NOTHING), list[tuple[int, Scored]]()
    scorer.new(lambda arrived, scored: found.append((arrived.commit, scored)) is None)
    scorer.close()
    assert scorer.known.said["memory"] == "log"
    assert [(commit, scored.snapshot) for commit, scored in found] == [
        (0, None), (1, 0), (2, 1), (3, 2), (4, 3), (5, 4),
    ]  # fmt: skip
    assert [bool(np.isfinite(scored.score).all()) for _, scored in found] == [False, *[True] * 5]
