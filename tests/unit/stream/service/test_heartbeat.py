"""Who beats: every wait and every part of long work of a service; so that /healthz fails for a hang and for nothing else."""

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from every_strategy import NAMES, TRAINED, session_in
from trainer_sessions import examples_of, learn
from trainer_streams import make_lane

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.background import Background
from freshet_graph.stream.job import open_log, standby
from freshet_graph.stream.job.open_log import RoomForCommits
from freshet_graph.stream.job.standby import Standby
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.service import heartbeat
from freshet_graph.stream.store.errors import LaneBusyError
from freshet_graph.trainer.continual import follower
from freshet_graph.trainer.continual.follower import Follower
from freshet_graph.trainer.continual.pace import LoadPolicy
from freshet_graph.trainer.ranks import Ranks


class Clock:
    """Stands still but for what is waited: every beat is the same moment's until somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.longest_s = 0.0
        monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        heartbeat.beat()

    def wait(self, seconds: float = 1.0) -> None:
        self.now_s += seconds
        self.longest_s = max(self.longest_s, heartbeat.silent_s())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def refusing(times: int, error: Exception) -> Callable[[], str]:
    left = iter(range(times))

    def tried() -> str:
        if next(left, None) is not None:
            raise error
        return "made"

    return tried


def test_a_job_that_stands_by_does_not_hang(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "time", SimpleNamespace(sleep=clock.wait))
    waiting = Standby("g", waits=True, stop=lambda: False, shown=lambda _: None, check=lambda: None)
    assert waiting.alone(refusing(5, LaneBusyError("another writes"))) == "made"
    assert clock.longest_s == standby.LOOK_S


def test_a_job_whose_disk_is_full_does_not_hang(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_log, "time", SimpleNamespace(monotonic=lambda: clock.now_s, sleep=clock.wait))
    waiting = RoomForCommits("store", stop=lambda: False, retried=lambda: None)
    for _ in range(5):
        waiting.wait(OSError(errno.ENOSPC, "full"))
    assert clock.now_s > 4 * open_log.RETRY_S
    assert clock.longest_s < 2 * open_log.LOOK_S


def test_the_end_of_a_job_that_waits_for_a_slow_lane_does_not_hang(clock: Clock) -> None:
    work = Background("lane", lambda: None)  # never started: the lane is at a long snapshot
    looks = iter(range(5))

    def look() -> bool:
        clock.wait()
        return next(looks, None) is None

    assert not work.settle(stop=look)
    assert clock.longest_s == 1.0


def test_a_long_commit_is_no_hang_from_phase_to_phase(clock: Clock, tmp_path: Path) -> None:
    kafka = {"bootstrap": "127.0.0.1:1", "topics": [{"name": "edges"}]}
    config = StreamConfig(graph="g", store=str(tmp_path), kafka=kafka, snapshots={"interval_s": 1})
    metrics = StreamMetrics(config)
    for phase in ("order", "files", "record", "sweep"):
        clock.wait(200)
        metrics.commit_phase(phase, 200)
    assert clock.longest_s == 200


def test_a_trainer_that_waits_for_its_lane_does_not_hang(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(follower, "time", SimpleNamespace(monotonic=lambda: clock.now_s, sleep=clock.wait))
    following = Follower(Ranks(), until_idle_s=30, stop=lambda: False, waiting=lambda *_: None)
    assert following.open_lane(str(tmp_path / "none"), "hash") is None
    lane = make_lane(tmp_path / "store")
    monkeypatch.setattr(lane, "follow", lambda *_, **__: (clock.wait(), iter(()))[1])
    last = lane.manifests[-1].sequence
    assert following.next(lane, last, LoadPolicy("train-all", 8)) is None
    assert clock.longest_s <= 1.0


@pytest.mark.parametrize("strategy", NAMES)
def test_a_long_training_step_is_no_hang_from_batch_to_batch(
    strategy: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = session_in(tmp_path, strategy, TRAINED[strategy])
    examples = [examples_of(session, sequence) for sequence in range(2)][-1]
    rate = session.strategy.learner.rate
    step, steps = rate.step, []
    monkeypatch.setattr(rate, "step", lambda norm: (clock.wait(100), steps.append(1), step(norm))[-1])
    for epoch in range(3):  # a pass of group over one snapshot is one step
        learn(session, examples, epoch)
    assert len(steps) > 2
    assert clock.longest_s == 100
