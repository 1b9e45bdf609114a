"""How a live stream is learned where nothing is configured, and when it is written down."""

import json
from pathlib import Path

import pytest
from test_trainer_daemon import EVENT_MODEL, config_for, lines, run
from trainer_streams import make_lane, meetings

from schemas.trainer_config import Optimisation
from trainer.continual.pace import FASTER, YOUNG, Pace, Turn
from trainer.continual.saving import SHARE, Saving

OPEN = {**EVENT_MODEL, "optimisation": {"batch_size": 16}}


def test_an_event_model_passes_twice_while_it_is_young_and_then_once_at_a_higher_rate() -> None:
    pace = Pace(Optimisation(), "event")
    assert [pace.take(YOUNG - 1), pace.take(1), pace.take(5)] == [
        Turn(2, FASTER),
        Turn(2, FASTER),
        Turn(1, FASTER),
    ]


def test_what_is_configured_stays() -> None:
    assert Pace(Optimisation(), "snapshot").take(YOUNG) == Pace(Optimisation(), "snapshot").take(5) == Turn(2)
    named = Pace(Optimisation(epochs=3), "event")
    assert [named.take(YOUNG), named.take(5)] == [Turn(3), Turn(3)]
    rated = Pace(Optimisation(learning_rate=0.01), "event")
    assert [rated.take(YOUNG), rated.take(5)] == [Turn(2), Turn(1)]
    older = Pace(Optimisation(), "event")
    older.restore({})
    assert older.take(5) == Turn(1, FASTER)


def test_a_run_goes_on_at_its_pace_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lane(tmp_path / "store", events=meetings())
    straight, broken = (config_for(tmp_path, checkpoint=str(tmp_path / name), **OPEN) for name in "ab")
    third = sum(line["events"] for line in lines_of(straight, 2))
    monkeypatch.setattr("trainer.continual.pace.YOUNG", third)
    whole = run(straight)
    run(broken, snapshots=1)
    run(broken, snapshots=3)
    again = run(broken)
    assert [line["passes"] for line in lines(straight)] == [2, 2, 1, 1, 1, 1]
    rates = [each.session.strategy.learner.rate.now() for each in (whole, again)]
    assert rates == [FASTER * 1e-3] * 2
    ours, theirs = ([{**line, "lag": 0} for line in lines(config)] for config in (straight, broken))
    assert json.dumps(ours) == json.dumps(theirs)


def lines_of(config, snapshots: int) -> list[dict]:  # type: ignore[no-untyped-def]
    """Of a run apart."""
    apart = config.model_copy(update={"checkpoint": config.checkpoint + "-apart"})
    run(apart, snapshots=snapshots)
    return lines(apart)


def test_a_checkpoint_is_due_once_it_costs_little_of_the_time() -> None:
    clock = [0.0]
    saving = Saving(None, lambda: clock[0])
    assert saving.due(0), "nothing is known of what it costs"
    with saving.measured():
        clock[0] += 2.0
    assert not saving.due(1)
    clock[0] += 2 * SHARE - 1
    assert not saving.due(2)
    clock[0] += 1
    assert saving.due(3)
    assert [Saving(3).due(number) for number in range(4)] == [False, False, True, False]
