"""Every alert fires on the series that the code exports in that fault, and none while all is well."""

import shutil
import subprocess
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alert_world import DOWN, GONE, RANK_0, RANK_1, STREAM, World, rules, rules_file
from log_events import poll

from freshet_graph.schemas.events import Reason
from freshet_graph.stream.cluster.worker import last_commit
from freshet_graph.stream.job.held_topics import HOLD_MESSAGES, HeldTopics
from freshet_graph.stream.kafka.export_publisher import ExportPublisher
from freshet_graph.stream.kafka.present import Present
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.arrival.service import _Service

MANY_YEARS_AGO = 1_100_000_100
QUIET = 8
"""Minutes before a fault: by then a snapshot was sealed and learned."""
LONG = 60
"""Minutes; a fault that takes longer to show is for the slow tests."""

Made = Callable[..., World]
Firing = Mapping[int, set[str]]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Makes a world that is closed again."""
    made: list[World] = []

    def make(**settings: Any) -> World:
        made.append(World(tmp_path, monkeypatch, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def judge(tmp_path: Path, world: World, firing: Firing) -> None:
    """Have promtool evaluate the alerts on what was scraped."""
    world.close()
    world.patch.undo()
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (it comes with prometheus)")
    path = tmp_path / "rules_test.yml"
    path.write_text(rules_file([world.case(firing)]), encoding="utf-8")
    told = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    assert told.returncode == 0, (told.stdout + told.stderr)[:4_000]


# All is well


def test_nothing_fires_while_all_is_well(world: Made, tmp_path: Path) -> None:
    here = world()
    here.minutes(100)
    judge(tmp_path, here, {minute: set() for minute in range(5, 100, 5)})


def test_nothing_fires_in_a_quiet_night(world: Made, tmp_path: Path) -> None:
    here = world()
    here.minutes(20)
    here.silent = {0, 1}
    here.minutes(90)
    judge(tmp_path, here, {minute: set() for minute in range(5, 110, 5)})


def test_nothing_fires_while_the_past_is_replayed_and_training_comes_after_it(
    world: Made, tmp_path: Path
) -> None:
    here = world(begin_s=MANY_YEARS_AGO, lag={"max_snapshots": 3})
    here.speed, here.learns, here.by_turns = 12.0, 1.0, False  # the stream makes 2.4 snapshots a minute
    here.minutes(40)
    here.silent = {0, 1}  # all is read: training goes on
    here.minutes(30)
    assert here.trainer is not None
    assert here.trainer.sequence < len(here.trainer.lane.manifests) - 10
    judge(tmp_path, here, {minute: set() for minute in range(5, 70, 5)})


@pytest.mark.slow
def test_training_that_stops_in_the_middle_of_a_replay_is_told(world: Made, tmp_path: Path) -> None:
    here = world(begin_s=MANY_YEARS_AGO, lag={"max_snapshots": 3})
    here.speed, here.learns, here.by_turns = 12.0, 1.0, False
    here.minutes(30)
    here.learns = 0.0
    here.minutes(60)
    judge(tmp_path, here, {30: set(), 89: {"FreshetStale", "FreshetTrainerLag"}})


def test_a_trainer_that_has_no_weights_yet_is_stale_once_there_is_something_to_learn(
    world: Made, tmp_path: Path
) -> None:
    here = world()
    here.learns = 0.0  # hangs in its first snapshot, say
    here.minutes(30)
    judge(tmp_path, here, {4: set(), 29: {"FreshetStale"}})


def test_a_topic_in_which_everything_is_refused_from_its_first_message_on_is_told(
    world: Made, tmp_path: Path
) -> None:
    here = world()
    here.refused = 1
    here.minutes(35)
    judge(tmp_path, here, {14: set(), 34: {"FreshetManyRefused"}})


# Faults: what happens, for how many minutes, and what fires


def one_partition_holds_event_time(world: World) -> None:
    world.silent, world.unread[1] = {1}, 50


def garbage_only(world: World) -> None:
    world.refused, world.unread[0] = 1, 50


def loop_hangs(world: World) -> None:
    world.unread[0] = 5
    world.minutes(1)
    world.reads, world.obstacle = False, "no topic partition was looked at for 99 s"


def arrival_outruns_reading(world: World) -> None:
    def more() -> None:
        world.unread[0] += 2_000

    world.every_minute.append(more)


def disk_fills(world: World) -> None:
    began_s = world.now_s
    world.free = lambda: 0.5 * (1 - (world.now_s - began_s) / 36_000)


def offsets_are_gone(world: World) -> None:
    world.skipped = 7
    world.minutes(1)
    world.skipped = 0


def events_are_late(world: World) -> None:
    world.late = 0.2


def topic_is_held(world: World) -> None:
    """Beside another one, which is read."""
    topics = HeldTopics(world.config, {})
    topics.passed(
        poll("edges", 0, [(offset, None) for offset in range(HOLD_MESSAGES)], first=0, end=HOLD_MESSAGES)
    )
    (held,) = topics.by_name.values()
    world.stream.topic_held(held.name, held.reason, held.key)
    world.obstacle = str(held)


def some_are_refused(world: World) -> None:
    world.refused = 0.05


def a_format_fails(world: World) -> None:
    """One message in two hundred."""
    world.refused, world.reason = 0.005, Reason.DECODER_ERROR


def lane_hangs(world: World) -> None:
    world.lane_works = False


def one_part_is_too_large(world: World) -> None:
    def shown() -> None:
        assert world.trainer is not None
        newest = world.trainer.lane.manifests[-1]
        quality = newest.quality.model_copy(update={"node_balance": 1.5})
        world.stream._show_lane(newest.model_copy(update={"quality": quality}))

    world.every_minute.append(shown)


def commits_are_tried_again(world: World) -> None:
    world.every_minute.append(lambda: world.stream.restarted("disk"))


def brokers_are_gone(world: World) -> None:
    world.silent = {0, 1}
    world.obstacle = "no broker of 127.0.0.1:1 has answered for 99 s"


def clock_is_set_back(world: World) -> None:
    """By an hour; the log's last commit knows better."""
    present = Present(world.config, wall_us=lambda: round((world.now_s - 3_600) * 1e6))
    present.ask_too(lambda: None, lambda: last_commit(world.config.store))

    def checked() -> None:
        world.obstacle = present.check()
        world.stream.clock_error(present.error_s)

    checked()
    world.reads = False
    world.every_minute.append(checked)


def training_stops(world: World) -> None:
    world.learns = 0.0


def training_is_too_slow(world: World) -> None:
    world.learns = 0.1


def no_checkpoint_is_due(world: World) -> None:
    """By its configuration, and nothing has to happen."""


def rank_hangs(world: World) -> None:
    world.beats, world.learns = False, 0.0


def ranks_die_again_and_again(world: World) -> None:
    times = iter(range(1, 1_000))

    def again() -> None:
        if world.scrapes.minutes % 5 == 0:
            world.ranks = [world.rank_metrics(rank, restarts=next(times)) for rank in (0, 1)]
            world.trainer = None

    world.every_minute.append(again)


def loss_is_not_finite(world: World) -> None:
    assert world.trainer is not None
    learn = world.trainer.snapshot_trainer.learn
    world.patch.setattr(
        world.trainer.snapshot_trainer, "learn", lambda *given: replace(learn(*given), nonfinite=1)
    )
    world.minutes(6)
    world.patch.setattr(world.trainer.snapshot_trainer, "learn", learn)


def ranks_learn_apart(world: World) -> None:
    assert world.trainer is not None
    world.patch.setattr(world.trainer.session.strategy.averager, "since_last", lambda: (1, 0.5))


def model_is_poor(world: World) -> None:
    world.figures[("ap", "all", "model")] = 0.5


def model_is_not_scored(world: World) -> None:
    world.figures.clear()


def labels_are_wrong(world: World) -> None:
    world.label = 2


def labels_stop(world: World) -> None:
    """They came with all events of ten minutes."""
    until = world.scrapes.minutes + 10
    world.label = 1
    world.every_minute.append(
        lambda: setattr(world, "label", None) if world.scrapes.minutes >= until else None
    )


def events_wait_for_longer_than_there_is_room(world: World) -> None:
    assert world.trainer is not None
    task: Any = world.trainer.session.task
    task._waiting._most = 10


def amounts_are_in_another_unit(world: World) -> None:
    world.weight = 100.0


def rss_grows(world: World) -> None:
    began_s = world.now_s
    world.rss = lambda: 1e9 + 2e5 * (world.now_s - began_s)


def exports_are_refused(world: World) -> None:
    def refuse(*_: object) -> None:
        raise Failure("not allowed to write to topic vectors")

    world.patch.setattr("freshet_graph.stream.kafka.topics.greet", refuse)
    publication = namedtuple("to", "exports kind topic format partitions")(
        "hash", "embeddings", "vectors", "json", 1
    )
    publisher = ExportPublisher(world.config.store, publication, world.config.kafka, world.stream)  # type: ignore[arg-type]

    def tried() -> None:
        with pytest.raises(Failure):
            publisher._publish_all()

    world.every_minute.append(tried)


def scoring(world: World, send: Callable[[], bool]) -> Callable[[], int]:
    """``freshet-trainer score`` beside the others, to a topic that takes messages as ``send`` says; scores what came."""
    topic = namedtuple("Topic", "newest send obstacle close")(
        lambda _: [], lambda _: send(), None, lambda: None
    )
    service = _Service(world.trainer_config, None, lambda *_: topic)  # type: ignore[arg-type, return-value]
    log_reader = service._log()
    assert log_reader is not None
    scorer = service._scorer(log_reader)
    assert scorer is not None
    world.scorer = service._metrics.registry
    return lambda: scorer.new(lambda arrived, scored: service._emit(scorer, arrived, scored))


def scores_take_long(world: World) -> None:
    def send() -> bool:
        world.now_s += 3
        return True

    score = scoring(world, send)
    world.every_minute.append(lambda: score() and None)


def scorer_cannot_send(world: World) -> None:
    """It waits for brokers with the first commit."""
    scoring(world, lambda: False)()


def stream_is_down(world: World) -> None:
    world.targets[STREAM] = DOWN


def stream_is_gone(world: World) -> None:
    world.targets[STREAM] = GONE


def rank_1_is_not_scraped(world: World) -> None:
    world.targets[RANK_1] = GONE


def trainer_is_gone(world: World) -> None:
    world.targets |= {RANK_0: GONE, RANK_1: GONE}


SCORED = {
    "model": "tgn-history",
    "strategy": "sequential",
    "model_params": {"memory": 4, "time_width": 4},
    "scoring": {"topic": "scored", "kafka": {"bootstrap": "127.0.0.1:1"}},
}

FAULTS: list[tuple[Callable[[World], None], dict[str, Any], int, set[str]]] = [
    (one_partition_holds_event_time, {}, 110,
     {"FreshetEventTimeHeld", "FreshetNotSealed", "FreshetNotReady", "FreshetStale"}),
    (garbage_only, {}, 32, {"FreshetWatermarkStalled", "FreshetManyRefused"}),
    (loop_hangs, {}, 20, {"FreshetNoCommit", "FreshetWatermarkStalled", "FreshetNotReady"}),
    (arrival_outruns_reading, {}, 25, {"FreshetLagRising"}),
    (disk_fills, {}, 50, {"FreshetDiskFullSoon"}),
    (offsets_are_gone, {}, 5, {"FreshetOffsetGap"}),
    (topic_is_held, {}, 10, {"FreshetTopicHeld", "FreshetNotReady"}),
    (some_are_refused, {}, 30, {"FreshetManyRefused"}),
    (a_format_fails, {}, 30, {"FreshetFormatFails"}),
    (events_are_late, {}, 30, {"FreshetManyLate"}),
    (lane_hangs, {}, 45, {"FreshetLaneBehind", "FreshetStale"}),
    (one_part_is_too_large, {}, 35, {"FreshetUnbalanced"}),
    (commits_are_tried_again, {}, 10, {"FreshetRestartLoop"}),
    (brokers_are_gone, {}, 10, {"FreshetNotReady"}),
    (clock_is_set_back, {}, 10, {"FreshetClockWrong", "FreshetNotReady"}),
    (training_stops, {}, 45, {"FreshetStale"}),
    (training_is_too_slow, {"lag": {"max_snapshots": 3}}, 80, {"FreshetStale", "FreshetTrainerLag"}),
    (no_checkpoint_is_due, {"checkpoint_every": 1_000}, 25, {"FreshetCheckpointOld"}),
    (rank_hangs, {}, 40, {"FreshetStale", "FreshetRankDown"}),
    (ranks_die_again_and_again, {}, 40, {"FreshetRanksRestart"}),
    (loss_is_not_finite, {}, 3, {"FreshetLossNotFinite"}),
    (ranks_learn_apart, {"strategy": "hybrid", "strategy_params": {"steps": 2}}, 30, {"FreshetRanksDiverge"}),
    (model_is_poor, {}, 33, {"FreshetBelowRecency"}),
    (model_is_poor, {"exports": {"embeddings": True, "hold": {"below_recency": True}}}, 33,
     {"FreshetBelowRecency", "FreshetExportHeld"}),
    (model_is_not_scored, {}, 17, {"FreshetNotScored"}),
    (labels_are_wrong, {"task": "edge-classification"}, 8, {"FreshetWrongLabels"}),
    (labels_stop, {"task": "edge-classification", "task_params": {"labels_expected_s": 600}}, 36,
     {"FreshetNoLabels"}),
    (events_wait_for_longer_than_there_is_room, {"task": "edge-classification"}, 20, {"FreshetLabelsLost"}),
    (amounts_are_in_another_unit, {"task": "edge-classification", "task_params": {"window_s": 1200}}, 38,
     {"FreshetDrift"}),
    (rss_grows, {}, 150, {"FreshetMemoryGrows"}),
    (exports_are_refused, {"exports": {"embeddings": True}}, 40, {"FreshetNotPublished"}),
    (scores_take_long, SCORED, 20, {"FreshetScoresLate"}),
    (scorer_cannot_send, SCORED, 10, {"FreshetScorerBehind"}),
    (stream_is_down, {}, 10, {"FreshetTargetDown"}),
    (stream_is_gone, {}, 10, {"FreshetTargetGone"}),
    (trainer_is_gone, {}, 10, {"FreshetTargetGone"}),
    (rank_1_is_not_scraped, {}, 10, {"FreshetRanksMissing"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "settings", "minutes", "expected"),
    [
        pytest.param(*row, id=row[0].__name__, marks=pytest.mark.slow if row[2] > LONG else ())
        for row in FAULTS
    ],
)
def test_what_the_code_exports_in_a_fault_fires_its_alerts_and_no_others(
    fault: Callable[[World], None],
    settings: dict[str, Any],
    minutes: int,
    expected: set[str],
    world: Made,
    tmp_path: Path,
) -> None:
    here = world(**settings)
    here.minutes(QUIET)
    fault(here)
    here.minutes(minutes)
    last = here.scrapes.minutes - 1
    judge(tmp_path, here, {QUIET - 1: set(), last: expected})


def test_every_alert_has_its_fault() -> None:
    told = {name for *_, expected in FAULTS for name in expected}
    assert told == {rule["alert"] for rule in rules()}
