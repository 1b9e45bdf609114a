"""How a live stream is learned where nothing is configured, and when it is written down."""

import json
from pathlib import Path

import pytest
from small_trainers import EVENT_MODEL, config_for, lines, run
from trainer_streams import make_lane, meetings

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.continual.daemon import SHARE, Saving
from freshet_graph.trainer.continual.pace import FASTER, FOLLOWED, LARGEST, YOUNG, Pace, Turn


def paced(kind: str = "event", **optimisation: object) -> Pace:
    return Pace(Optimisation.model_validate(optimisation), kind, interval_s=1.0)  # type: ignore[arg-type]


def test_an_event_model_passes_twice_while_it_is_young_and_then_once() -> None:
    pace = paced()
    turns = [pace.turn_for(events) for events in (YOUNG - 1, 1, 5)]
    assert turns == [Turn(2, FASTER, 256), Turn(2, FASTER, 256), Turn(1, FASTER, 256)]


def test_what_is_configured_stays() -> None:
    snapshots = paced("snapshot")
    assert [snapshots.turn_for(YOUNG), snapshots.turn_for(5)] == [Turn(2, 1.0, 256)] * 2
    named = paced(epochs=3, batch_size=32)
    assert [named.turn_for(YOUNG), named.turn_for(5)] == [Turn(3, 1.0, 32)] * 2
    rated = paced(learning_rate=0.01)
    assert [rated.turn_for(YOUNG), rated.turn_for(5)] == [Turn(2, 1.0, 256), Turn(1, 1.0, 256)]
    older = paced()
    older.restore({})
    assert older.turn_for(5) == Turn(1, FASTER, 256)


def test_batches_follow_the_stream_and_do_not_swing_with_it() -> None:
    pace = paced(batch_size="auto")
    fast = int(FOLLOWED)
    arriving = [fast, *[2 * fast] * 2, *[9 * fast] * 9, *[2 * fast] * 4, *[0] * 6]
    turns = [pace.turn_for(events) for events in arriving]
    again = paced(batch_size="auto")
    for place, events in enumerate(arriving):  # written down after each
        assert again.turn_for(events) == turns[place]
        state, again = again.state(), paced(batch_size="auto")
        again.restore(state)
    batches = [turn.batch for turn in turns]
    assert batches[:2] == [256, 512]
    assert batches[3:12] == [LARGEST] * 9
    assert batches[-1] == 256
    assert turns[1].passes == 1, "young, but there is no time"
    assert [turn.factor for turn in turns] == [FASTER * batch / 256 for batch in batches]
    swinging = paced(batch_size="auto", learning_rate=0.01)
    for events in (1.1, 0.9) * 10:
        turn = swinging.turn_for(int(events * fast))
    assert turn == Turn(1, 1.0, 512), "so little less is no reason"


def test_auto_is_refused_where_steps_do_not_change_their_size(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=meetings())
    config = config_for(tmp_path, optimisation={"batch_size": "auto"})
    with pytest.raises(Failure, match=r"batch_size: strategy vertex does not .*Give a number"):
        run(config)


@pytest.mark.parametrize("batch_size", [16, "auto"])
@pytest.mark.parametrize("strategy", ["sequential", "pac"])
def test_a_run_goes_on_at_its_pace_after_an_interruption(
    strategy: str, batch_size: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lane(tmp_path / "store", events=meetings())
    kind = {**EVENT_MODEL, "strategy": strategy, "optimisation": {"batch_size": batch_size}}
    straight, broken = (config_for(tmp_path, checkpoint=str(tmp_path / name), **kind) for name in "ab")
    third = sum(line["events"] for line in lines_of(straight, 2))
    monkeypatch.setattr("freshet_graph.trainer.continual.pace.YOUNG", third)
    monkeypatch.setattr("freshet_graph.trainer.continual.pace.FOLLOWED", 1.0)
    whole = run(straight)
    run(broken, snapshots=1)
    run(broken, snapshots=3)
    again = run(broken)
    batches = [line["step_events"] for line in lines(straight)]
    assert [line["passes"] for line in lines(straight)] == [1 if batch_size == "auto" else 2] * 2 + [1] * 4
    assert set(batches) == ({LARGEST} if batch_size == "auto" else {16})
    rates = [each.session.strategy.learner.rate.now() for each in (whole, again)]
    assert rates == [FASTER * 1e-3 * LARGEST / 256 if batch_size == "auto" else FASTER * 1e-3] * 2
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
