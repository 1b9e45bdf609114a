"""Which checkpoint scores an event, and how one takes over from another."""

from collections.abc import Callable
from pathlib import Path

import pytest
from exporting_trainers import ONCE
from small_trainers import config_for, trainer_for
from structlog.testing import capture_logs
from trainer_streams import SECOND, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store import from_file
from freshet_graph.trainer.arrival import scorer as module
from freshet_graph.trainer.arrival.scorer import NOTHING, Scorer
from freshet_graph.trainer.ranks import Ranks

SNAPSHOTS = 6


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)


def trained(folder: Path, snapshots: int) -> tuple[TrainerConfig, Callable[[], None]]:
    """A store of six snapshots, a commit each, of which a trainer has learned some; and what learns the next."""
    events = meetings(snapshots=SNAPSHOTS, nodes=60, features=False)
    lane = Lane(name="hash", algorithm="hash", parts=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(from_file, "SNAPSHOTS_A_COMMIT", 1)
        from_file.build_store(events, folder / "store", interval_us=SECOND, lanes=[lane], graph="meetings")
    config = config_for(
        folder, model="tgn-history", strategy="sequential", optimisation=ONCE, keep_checkpoints=9,
        model_params={"memory": 8, "time_width": 8},
    )  # fmt: skip
    trainer = trainer_for(config)

    def step() -> None:
        trainer.step(trainer.lane.manifests[trainer.sequence + 1])

    for _ in range(snapshots):
        step()
    return config, step


def commits(scorer: Scorer) -> list[int]:
    scored: list[int] = []
    scorer.new(lambda arrived, _: scored.append(arrived.commit) is None)
    return scored


@pytest.mark.parametrize(
    ("done", "checkpoint", "memory"),
    [(NOTHING, 3, "log"), (0, 0, "checkpoint"), (2, 2, "checkpoint"), (5, 3, "checkpoint")],
)
def test_the_newest_checkpoint_that_has_not_learned_the_next_event_scores(
    tmp_path: Path, done: int, checkpoint: int, memory: str
) -> None:
    config, _ = trained(tmp_path, 4)
    scorer = Scorer(config, Ranks(), done)
    assert (scorer.sequence, scorer.known.said["memory"]) == (checkpoint, memory)
    assert commits(scorer) == list(range(max(done, -1) + 1, SNAPSHOTS))
    scorer.close()


def test_a_newer_checkpoint_takes_over_and_a_damaged_one_does_not(tmp_path: Path) -> None:
    config, step = trained(tmp_path, 4)
    scorer = Scorer(config, Ranks(), 4)
    assert (scorer.sequence, commits(scorer)) == (3, [5])
    step()
    (tmp_path / "checkpoints" / f"{4:016d}.pt").write_bytes(b"torn")
    with capture_logs() as logs:
        commits(scorer)
        assert scorer._next is not None
        scorer._next.exception()
        commits(scorer)
    assert [line["log_level"] for line in logs if "take over" in line["event"]] == ["warning"]
    assert (scorer.sequence, scorer.takeovers) == (3, 0)
    step()
    for _ in range(2):  # begun by a look, and done by a later one
        if scorer._next is not None:
            scorer._next.exception()
        commits(scorer)
    if scorer.sequence != 5:
        assert scorer._next is not None
        scorer._next.result()
        commits(scorer)
    assert (scorer.sequence, scorer.takeovers) == (5, 1)
    scorer.close()


def test_a_checkpoint_made_from_the_log_is_replaced_by_its_own_memory(tmp_path: Path) -> None:
    config, _ = trained(tmp_path, 4)
    scorer = Scorer(config, Ranks(), NOTHING)
    assert len(commits(scorer)) == SNAPSHOTS
    commits(scorer)
    assert scorer._next is not None
    scorer._next.result()
    commits(scorer)
    assert (scorer.sequence, scorer.known.said["memory"], scorer.takeovers) == (3, "checkpoint", 1)
    scorer.close()


def test_without_a_checkpoint_there_is_a_sentence(tmp_path: Path) -> None:
    config, _ = trained(tmp_path, 0)
    with pytest.raises(Failure, match=r"has no checkpoint any more. Train with freshet-trainer run"):
        Scorer(config, Ranks(), NOTHING)


def test_what_retention_dropped_is_said_once_and_counted(tmp_path: Path) -> None:
    config, _ = trained(tmp_path, 2)
    scorer = Scorer(config, Ranks(), 1)
    scorer.known.arrivals._first -= 1
    scorer.known.arrivals._log.snapshots.first = scorer.known.arrivals._first + 1
    with capture_logs() as logs:
        assert commits(scorer) == [2, 3, 4, 5]
        assert commits(scorer) == []
    assert [line["snapshots"] for line in logs if "retention dropped" in line["event"]] == [1]
    assert scorer.dropped == 1
