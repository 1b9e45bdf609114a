"""The continual run: no event is learned before it was predicted, none twice, none unseen."""

import errno
import json
import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from prometheus_client import generate_latest
from small_trainers import EVENT_MODEL, KINDS, config_for, lines, run, trainer_for
from structlog.testing import capture_logs
from trainer_streams import SECOND, make_lane, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.trainer_config import Lag, TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.errors import RetainedError
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.continual import writes
from freshet_graph.trainer.continual.daemon import follow
from freshet_graph.trainer.continual.follower import Follower
from freshet_graph.trainer.continual.journal import ScoreFile
from freshet_graph.trainer.continual.pace import LoadPolicy
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.checkpoint import Checkpoints, newest_checkpoint

FRESH = {**EVENT_MODEL, "history_moment": "event"}


@pytest.mark.parametrize(
    ("kind", "every", "events"),
    [
        *((kind, 1, meetings()) for kind in ({}, EVENT_MODEL, FRESH)),
        *((kind, 2, meetings()) for kind in ({}, EVENT_MODEL)),
        *((kind, 1, meetings(features=False, nodes=200)) for kind in ({}, EVENT_MODEL)),
    ],
)
def test_an_interrupted_run_gives_the_numbers_of_an_uninterrupted_one(
    kind: dict, every: int, events: pa.Table, tmp_path: Path
) -> None:
    make_lane(tmp_path / "store", events=events)
    straight = config_for(tmp_path, checkpoint=str(tmp_path / "straight"), checkpoint_every=every, **kind)
    broken = config_for(tmp_path, checkpoint=str(tmp_path / "broken"), checkpoint_every=every, **kind)
    run(straight)
    run(broken, snapshots=3)  # dies after three, with two or three of them in a checkpoint
    second = run(broken)
    assert second.sequence == 5
    ours, theirs = lines(straight), lines(broken)
    assert [line["sequence"] for line in theirs] == list(range(6))
    for line in (*ours, *theirs):
        del line["lag"]
    assert theirs == ours


@pytest.mark.parametrize("kind", [{}, EVENT_MODEL, FRESH])
def test_changing_the_future_never_changes_a_past_score(kind: dict, tmp_path: Path) -> None:
    events = meetings(snapshots=6)
    past = events.filter(pc.less(events["t"], 4 * SECOND))
    other = meetings(snapshots=6, seed=9)
    changed = pa.concat_tables([past, other.filter(pc.greater_equal(other["t"], 4 * SECOND))])
    found = []
    for name, table in (("one", events), ("two", changed)):
        make_lane(tmp_path / name / "store", events=table)
        config = config_for(tmp_path / name, **kind)
        run(config)
        found.append(lines(config))
    for one, two in zip(found[0][:4], found[1][:4], strict=True):
        assert {**one, "lag": 0} == {**two, "lag": 0}
    assert found[0][4]["ap"] != found[1][4]["ap"]


@KINDS
def test_late_events_are_learned_and_counted_but_not_scored(
    kind: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lane(tmp_path / "store")
    config = config_for(tmp_path, **kind)
    trainer = run(config, snapshots=5)
    columns_of = trainer.session.view.events

    def with_late(tau: int) -> EventColumns:
        columns = columns_of(tau)
        return replace(columns, late=(np.cumsum(columns.op == 1) <= 3) & (columns.op == 1))

    monkeypatch.setattr(trainer.session.view, "events", with_late)
    trainer.step(trainer.lane.manifests[5])
    line = lines(config)[-1]
    inserts = int((columns_of(line["tau"]).op == 1).sum())
    assert line["excluded"]["late"] == 3
    assert (line["scored"], line["trained"]) == (inserts - 3, inserts)
    text = generate_latest(trainer.metrics.registry).decode()
    assert 'freshet_trainer_eval_excluded_total{graph="meetings",reason="late"} 3.0' in text


@KINDS
def test_skip_to_latest_remembers_what_it_skips_and_counts_it(kind: dict, tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    config = config_for(tmp_path, lag=Lag(max_snapshots=2), overload="skip-to-latest", **kind)
    trainer = trainer_for(config)
    follow(trainer, Follower(Ranks(), until_idle_s=0.1, stop=lambda: False, waiting=lambda *_: None))
    assert [(line["sequence"], line["skipped"]) for line in lines(config)] == [(5, 5)]
    whole = run(config_for(tmp_path, checkpoint=str(tmp_path / "all"), **kind))
    for name, column in whole.session.task.history.state().items():
        np.testing.assert_array_equal(column, trainer.session.task.history.state()[name])
    for name, column in whole.session.strategy.state().get("feed", {}).items():
        np.testing.assert_array_equal(column, trainer.session.strategy.state()["feed"][name])
    text = generate_latest(trainer.metrics.registry).decode()
    assert 'freshet_trainer_events_total{graph="meetings",use="state_only"}' in text
    assert 'freshet_trainer_lag_snapshots{graph="meetings",lane="hash"} 0.0' in text


def test_a_checkpoint_of_something_else_is_refused_by_key(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    run(config_for(tmp_path), snapshots=2)
    with pytest.raises(
        Failure, match=r"was made with window = 2, the configuration has 3\. Choose another folder"
    ):
        trainer_for(config_for(tmp_path, window=3))
    lane = LaneReader(tmp_path / "store", "hash")
    with pytest.raises(Failure, match="was made with horizon = None, the configuration has 4"):
        newest_checkpoint(config_for(tmp_path, horizon=4), lane)
    with pytest.raises(Failure, match=r'was made with smoothing = \{"kind":"none".*"kind":"edge-life"'):
        newest_checkpoint(config_for(tmp_path, smoothing={"kind": "edge-life", "length": 2}), lane)
    other = LaneReader(tmp_path / "store", "hash")
    other.header = other.header.model_copy(update={"checksum": "f" * 16})
    with pytest.raises(Failure, match=r"was made on another lane hash, which .* no longer has"):
        newest_checkpoint(config_for(tmp_path), other)
    elsewhere = LaneReader(tmp_path / "store", "hash")
    elsewhere.log.header = elsewhere.log.header.model_copy(update={"graph": "shop"})
    with pytest.raises(
        Failure, match=r"was made on another store, of graph meetings; \S+ is of graph shop\. Choose"
    ):
        newest_checkpoint(config_for(tmp_path), elsewhere)
    with pytest.raises(Failure, match="was made with history_moment = batch, the configuration has event"):
        trainer_for(config_for(tmp_path, history_moment="event"))
    with pytest.raises(Failure, match=r'model_params = \{"hidden": 8, "signature": 8\}'):
        trainer_for(config_for(tmp_path, model_params={"hidden": 9}))
    with pytest.raises(
        Failure, match=r'strategy_params = \{\}, the configuration has \{"inference_nodes": 9\}'
    ):
        trainer_for(config_for(tmp_path, strategy_params={"inference_nodes": 9}))


def test_a_checkpoint_of_another_log_is_refused(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    run(config_for(tmp_path))
    make_lane(tmp_path / "other", events=meetings(seed=4))
    with pytest.raises(
        Failure, match=r"after snapshot number 5, which lane hash of .* doesn't have with these"
    ):
        trainer_for(config_for(tmp_path, store=str(tmp_path / "other")))


def test_the_scores_file_has_what_its_description_says(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    config = config_for(tmp_path)
    run(config)
    line = ScoreFile(config.checkpoint).lines()[-1]
    assert {
        "sequence", "tau", "events", "scored", "trained", "excluded", "steps", "seconds", "t_max", "t_min", "lag",
        "wall_time", "loss", "ap", "auc", "mrr", "hits_at_10", "random_ap", "edgebank_ap", "edgebank_window_ap", "recency_ap",
        "recency_popularity_ap",
        "transductive_ap", "historical_ap",
    } <= line.keys()  # fmt: skip
    assert line["seconds"].keys() == {"advance", "prepare", "score", "train", "forget"}
    assert all(0 <= line[key] <= 1 for key in line if key.endswith(("ap", "auc", "mrr", "hits_at_10")))
    json.dumps(line, allow_nan=False)


def test_a_lane_made_later_is_waited_for_and_a_follower_ends_when_idle(tmp_path: Path) -> None:
    told: list[tuple[str | None, bool]] = []
    looks = iter(range(100))

    def stop() -> bool:
        if next(looks) == 2:  # the stream service comes up while the trainer waits
            build_store(
                meetings(features=False), tmp_path / "store", interval_us=SECOND,
                lanes=[Lane(name="hash", algorithm="hash", parts=1)],
            )  # fmt: skip
        return False

    follower = Follower(Ranks(), until_idle_s=30, stop=stop, waiting=lambda *now: told.append(now))
    lane = follower.open_lane(str(tmp_path / "store"), "hash")
    assert lane is not None
    reason, is_obstacle = told[0]
    assert reason is not None
    assert reason.startswith(f"waiting for lane hash: {tmp_path / 'store'}/log/log.json does not exist")
    assert is_obstacle
    idle = Follower(Ranks(), until_idle_s=0.1, stop=lambda: False, waiting=lambda *now: told.append(now))
    load = LoadPolicy("train-all", 8)
    assert idle.next(lane, -1, load).sequence == 0
    assert idle.next(lane, 5, load) is None
    assert Follower(Ranks(), until_idle_s=0.1, stop=lambda: False, waiting=lambda *now: told.append(now)).open_lane(
        str(tmp_path / "nowhere"), "hash"
    ) is None  # fmt: skip


def test_who_waits_for_a_lane_that_does_not_exist_is_told_those_that_do(tmp_path: Path) -> None:
    told: list[tuple[str | None, bool]] = []
    looks = iter(range(100))

    def stop() -> bool:
        look = next(looks)
        if look == 1:
            build_store(
                meetings(features=False), tmp_path / "store", interval_us=SECOND,
                lanes=[Lane(name=name, algorithm="hash", parts=1) for name in ("left", "right")],
            )  # fmt: skip
        return look == 3

    with capture_logs() as logs:
        follower = Follower(Ranks(), until_idle_s=None, stop=stop, waiting=lambda *now: told.append(now))
        assert follower.open_lane(str(tmp_path / "store"), "hash") is None
    reasons = [line["reason"] for line in logs if line["event"] == "waiting for the lane"]
    assert len(reasons) == 2  # one with no store, one with its lanes, and none again
    assert "has no lane 'hash'. It has left, right" in reasons[1]
    assert "has no lane 'hash'. It has left, right" in str(told[-1])


def test_a_store_that_pauses_is_waited_for_and_gives_the_numbers_of_one_that_did_not(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    straight, paused = (config_for(tmp_path, checkpoint=str(tmp_path / name), **EVENT_MODEL) for name in "ab")
    run(straight)
    later = sorted((tmp_path / "store/lanes/hash/commits").glob("*.json"))[3:]
    for record in later:  # the stream has got no further
        record.rename(record.with_suffix(".later"))
    told: list[tuple[str | None, bool]] = []

    def waiting(*now: Any) -> None:
        told.append(now)
        if now[0] is not None and told.count(now) == 2:
            for record in later:
                if (hidden := record.with_suffix(".later")).exists():
                    hidden.rename(record)

    follower = Follower(Ranks(), until_idle_s=20, stop=lambda: len(lines(paused)) == 6, waiting=waiting)
    follow(trainer_for(paused), follower)
    assert ("lane hash has no snapshot after number 2", False) in told  # caught up is ready
    ours, theirs = lines(straight), lines(paused)
    assert [{**line, "lag": 0} for line in theirs] == [{**line, "lag": 0} for line in ours]


def test_a_store_that_does_not_answer_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = make_lane(tmp_path / "store")
    told: list[tuple[str | None, bool]] = []
    follow_lane, failures = lane.follow, iter(range(2))

    def away(*inputs: object, **options: object) -> object:
        if next(failures, None) is not None:
            raise TimeoutError(110, "Connection timed out")
        return follow_lane(*inputs, **options)

    monkeypatch.setattr(lane, "follow", away)
    follower = Follower(Ranks(), until_idle_s=30, stop=lambda: False, waiting=lambda *now: told.append(now))
    assert follower.next(lane, 2, LoadPolicy("train-all", 8)).sequence == 3
    silent = "the store does not answer: [Errno 110] Connection timed out; lane hash has no snapshot after number 2"
    assert told == [(silent, True), (silent, True), (None, False)]


@pytest.mark.parametrize(
    ("refuses", "number"), [("checkpoints.save", 5), ("scores.append", 5), ("_exporter.export", 28)]
)
def test_what_cannot_be_written_is_named_and_the_next_start_goes_on(
    tmp_path: Path, refuses: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lane(tmp_path / "store")
    config = config_for(tmp_path, exports={"scores": True})
    trainer = trainer_for(config)
    trainer.step(trainer.lane.manifests[0])

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    owner, name = refuses.split(".")
    monkeypatch.setattr(getattr(trainer, owner), name, refused)
    where = "store" if "export" in refuses else "checkpoints"
    with pytest.raises(
        Failure, match=rf"{where}.*: .*{os.strerror(number)}. See that .* the newest checkpoint"
    ):
        trainer.step(trainer.lane.manifests[1])
    monkeypatch.undo()
    assert run(config).sequence == len(trainer.lane.manifests) - 1
    assert [line["sequence"] for line in ScoreFile(config.checkpoint).lines()] == list(range(6))


@pytest.mark.parametrize("refuses", ["checkpoints.save", "scores.append"])
def test_a_full_disk_is_waited_for_and_nothing_is_learned_meanwhile(
    tmp_path: Path, refuses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "RETRY_S", 0.1)
    make_lane(tmp_path / "store")
    waiting, straight = (config_for(tmp_path, checkpoint=str(tmp_path / name)) for name in ("one", "two"))
    trainer = trainer_for(waiting)
    owner, name = refuses.split(".")
    write = getattr(getattr(trainer, owner), name)
    tries: list[int] = []

    def full_for_a_while(*inputs: object) -> object:
        if trainer.sequence == 2 and len(tries) < 3:  # beyond until_idle_s
            tries.append(trainer.sequence)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*inputs)

    monkeypatch.setattr(getattr(trainer, owner), name, full_for_a_while)
    told: list[tuple[str | None, bool]] = []
    follower = Follower(Ranks(), until_idle_s=0.1, stop=lambda: False, waiting=lambda *now: told.append(now))
    with capture_logs() as logs:
        follow(trainer, follower)
    assert any(
        reason and reason.startswith("the disk has no room for ") and obstacle for reason, obstacle in told
    )
    events = [line["event"] for line in logs]
    assert events.count("no room for a file, waiting for it") == events.count("files are written again") == 1
    assert len(tries) == 3
    run(straight)
    assert lines(waiting) == lines(straight)
    newest = Checkpoints(waiting.checkpoint, 1).newest()
    assert newest is not None and newest[1]["sequence"] == trainer.sequence == 5


def test_a_trainer_that_is_asked_to_end_on_a_full_disk_fails_with_the_reason_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lane(tmp_path / "store")
    config = config_for(tmp_path)
    trainer = trainer_for(config)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(trainer.checkpoints, "save", full)
    asked: list[str] = []
    follower = Follower(
        Ranks(),
        until_idle_s=None,
        stop=lambda: bool(asked),
        waiting=lambda reason, _: asked.append(reason or ""),
    )
    with pytest.raises(
        Failure, match=r"^the disk has no room for checkpoint in .*No space left.*Make room and start"
    ):
        follow(trainer, follower)
    monkeypatch.undo()
    run(config)
    assert [line["sequence"] for line in lines(config)] == list(range(6))


def test_a_line_that_a_full_disk_cuts_leaves_the_score_file_as_it_was(tmp_path: Path) -> None:
    scores = ScoreFile(tmp_path)
    scores.append({"sequence": 0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (scores.path.stat().st_size + 5, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            scores.append({"sequence": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    scores.append({"sequence": 1})
    assert scores.path.read_text() == '{"sequence":0}\n{"sequence":1}\n'


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_start_on_a_full_disk_has_the_remedy(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    config = config_for(tmp_path)
    run(config, snapshots=3)
    (Path(config.checkpoint) / "scores.tmp").symlink_to("/dev/full")
    with pytest.raises(Failure, match=r"No space left on device.*then start again"):
        trainer_for(config)


def test_who_cannot_see_the_store_is_not_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = make_lane(tmp_path / "store")

    def away(*_: object, **__: object) -> object:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr(lane, "follow", away)
    follower = Follower(Ranks(), until_idle_s=0.1, stop=lambda: False, waiting=lambda *_: None)
    with pytest.raises(
        Failure, match=r"the store does not answer, so .* not known: .*instance limit reached"
    ):
        follower.next(lane, 2, LoadPolicy("train-all", 8))
    stopped = Follower(Ranks(), until_idle_s=0.1, stop=lambda: True, waiting=lambda *_: None)
    assert stopped.next(lane, 2, LoadPolicy("train-all", 8)) is None


def test_a_store_that_stands_still_shows_in_a_metric() -> None:
    metrics = TrainerMetrics(TrainerConfig(lane="hash"), 1)
    metrics.graph("meetings")
    metrics.waiting(yes=True)
    text = generate_latest(metrics.registry).decode()
    assert 'freshet_trainer_waiting{graph="meetings",lane="hash"} 1.0' in text
    assert 'freshet_trainer_rank_up{graph="meetings",rank="1"} 1.0' in text
    assert 'graph=""' not in text


def test_a_trainer_whose_snapshots_go_keeps_what_it_learned_and_passes_over_none(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    config = config_for(tmp_path, checkpoint_every=100)
    trainer = run(config, snapshots=1)
    compact(tmp_path / "store", Keep(snapshots=2), always=True)
    trainer.lane.refresh()
    kept = trainer.lane.manifests
    assert kept.first > 1
    with pytest.raises(RetainedError, match=r"number 1 is no longer kept\. A reader can start from number"):
        trainer.step(kept[len(kept) - 1])
    trainer.save()
    found = Checkpoints(config.checkpoint, config.keep_checkpoints).newest()
    assert found is not None
    assert found[1]["sequence"] == 0


def test_how_evenly_groups_were_trained_is_a_metric_as_in_the_scores(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=meetings(snapshots=5))
    config = config_for(
        tmp_path, model="wdgcn", strategy="group", horizon=4, strategy_params={"composition": "schedule"}
    )
    trainer = run(config)
    told = ScoreFile(config.checkpoint).lines()[-1]["balance"]
    assert {"imbalance measured", "efficiency measured", "gap predicted"} <= told.keys()
    for name, value in told.items():
        labels = dict(zip(("figure", "of"), name.split(), strict=True), graph=trainer.lane.header.graph)
        found = trainer.metrics.registry.get_sample_value("freshet_trainer_schedule_ratio", labels)
        assert found == pytest.approx(value)
