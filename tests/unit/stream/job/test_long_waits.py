"""Who waits for new files for long: one watch on the folder, however often he looks."""

import threading
from pathlib import Path

import pytest
from trainer_streams import make_lane

from freshet_graph.stream.store.files import follow as follow_module
from freshet_graph.stream.store.files.follow import follow
from freshet_graph.stream.store.files.records import Numbered
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual import follower as follower_module
from freshet_graph.trainer.continual.follower import Follower
from freshet_graph.trainer.continual.pace import LoadPolicy
from freshet_graph.trainer.ranks import Ranks


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An entry for each watcher that was made."""
    made: list[str] = []
    observer = follow_module.Observer

    def counted() -> object:
        made.append("")
        return observer()

    monkeypatch.setattr(follow_module, "Observer", counted)
    return made


def test_a_trainer_that_waits_makes_no_watch_a_tick(
    tmp_path: Path, watches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "TICK_S", 0.02)
    make_lane(tmp_path / "store")
    looks = iter(range(10_000))
    waiting = Follower(Ranks(), until_idle_s=None, stop=lambda: next(looks) > 60, waiting=lambda *_: None)
    lane = LaneReader(tmp_path / "store", "hash")
    assert waiting.next(lane, 5, LoadPolicy("train-all", 8)) is None
    assert len(watches) == 2, "one for the first look, one for all others"
    assert not [thread for thread in threading.enumerate() if "Observer" in type(thread).__name__]


def test_what_is_there_already_needs_no_watch(tmp_path: Path, watches: list[str]) -> None:
    there: Numbered[int] = Numbered("item")
    for number in range(3):
        there.append(number)
    found = follow(tmp_path, lambda: there, 0, timeout_s=None, stop=None)
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    assert not watches


def test_what_comes_before_the_watch_is_there_is_seen_at_once(tmp_path: Path) -> None:
    there: Numbered[int] = Numbered("item")
    looks = []

    def refreshed() -> Numbered[int]:
        looks.append(1)
        if len(looks) == 2:  # committed between the look and the watch
            there.append(7)
        return there

    found = follow(tmp_path, refreshed, 0, timeout_s=60, stop=lambda: len(looks) > 2)
    assert next(found) == 7
    assert len(looks) == 2
