"""The probability of an event's label on arrival: the classifier of the checkpoint, and the labels that came before."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from small_trainers import EVENT_MODEL, KINDS, config_for, run
from trainer_streams import SECOND, make_lane, meetings

from freshet_graph.schemas.events import label_schema
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.arrivals import Arrivals
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.arrival.labels import values_asked
from freshet_graph.trainer.arrival.memory import ArrivalMemory, Scored
from freshet_graph.trainer.arrival.snapshots import SnapshotMemory
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.checkpoint import newest_checkpoint

LEARNED = 4
NEW = 10**6
DELAYED = {"first": 40, "delay_s": 1.0, "label_learning_rate": 0.01, "label_batch_size": 8}


def labelled() -> pa.Table:
    """Sources of one community have label 1, mostly, and larger amounts; all events have ids."""
    events, rng = meetings(features=False), np.random.default_rng(4)
    label = (events["src"].to_numpy() < 15) ^ (rng.random(len(events)) < 0.1)
    columns = {
        "label": pa.array(label.astype(np.int32), mask=events["op"].to_numpy() != 1),
        "event_id": pa.array([f"event {row}" for row in range(len(events))]),
        "weight": pa.array(rng.lognormal(2 + 2 * label, 1).astype(np.float32)),
    }
    for name, column in columns.items():
        events = events.set_column(events.schema.get_field_index(name), name, column)
    return events


def trained(folder: Path, kind: dict[str, Any] = EVENT_MODEL, **params: Any) -> TrainerConfig:
    make_lane(folder / "store", events=labelled())
    options = {**DELAYED, **params}
    config = config_for(folder, task="edge-classification", task_params=options, **kind)
    run(config, snapshots=LEARNED)
    return config


def memory(
    config: TrainerConfig, labels: pa.Table | None = None, **more: Any
) -> ArrivalMemory | SnapshotMemory:
    lane = LaneReader(config.store, config.lane)
    if labels is not None:
        lane.log.labels = lambda after=-1: labels.filter(pc.greater(labels["commit"], after))
    newest = newest_checkpoint(config, lane)
    assert newest is not None
    of_kind = ArrivalMemory if config.strategy == "sequential" else SnapshotMemory
    return of_kind(config, lane, Ranks(), newest[1], **more)


def later(config: TrainerConfig) -> pa.Table:
    """The inserts after the checkpoint."""
    (arrived,) = Arrivals(LogReader(config.store), after=LEARNED - 1).new()
    return arrived.events.filter(pc.equal(arrived.events["op"], 1))


def topic(*rows: tuple[str, int, int, int]) -> pa.Table:
    """Labels: event, label, microsecond from which it is visible, commit."""
    event_id, label, visible_us, commit = (list(column) for column in zip(*rows, strict=True))
    none = [None] * len(rows)
    columns = [event_id, none, label, visible_us, visible_us, commit, none, [0] * len(rows)]
    return pa.table(dict(zip(label_schema("int").names, columns, strict=True)), schema=label_schema("int"))


def probability(scored: Scored | None) -> np.ndarray:
    assert scored is not None and scored.label_probability is not None
    return scored.label_probability


def take(of: ArrivalMemory | SnapshotMemory, commit: int, events: pa.Table) -> np.ndarray:
    assert of.labels is not None
    of.labels.before(commit)
    if isinstance(of, SnapshotMemory):
        of.before(commit)
    return probability(of.take(events))


def test_it_is_what_the_trainer_predicts_before_it_learns_the_label(tmp_path: Path) -> None:
    """Without embeddings, which know the events before the batch there, and those before the event here."""
    config = trained(tmp_path, {**EVENT_MODEL, "history_moment": "event"}, vectors=False)
    events = later(config)
    here = events.filter(pc.equal(events["tau"], LEARNED))
    found = take(memory(config), 5, here)
    waiting = run(config, snapshots=LEARNED + 1).session.task.label_parts[1]
    wanted = waiting._events.scores[-len(here) :, 0]
    assert np.ptp(wanted) > 1
    is_apart = (
        np.diff(here["t"].to_numpy(), prepend=0, append=1 << 62) > 0
    )  # equal times: one after the other here
    chosen = is_apart[:-1] & is_apart[1:]
    np.testing.assert_allclose(found[chosen], 1 / (1 + np.exp(-wanted[chosen])), rtol=1e-3, atol=1e-4)


@KINDS
def test_it_can_be_computed_again_bit_for_bit_and_knows_the_label_that_came_before(
    kind: dict[str, Any], tmp_path: Path
) -> None:
    config = trained(tmp_path, kind)
    events = later(config)
    first, second = events.slice(0, 20), events.slice(20)
    end_us = int(first["t"][-1].as_py())
    ids = first["event_id"].to_pylist()
    said = topic(*[(one, 1, end_us, 5) for one in ids])
    quiet, live, again, blind = (
        memory(config, said),
        memory(config, said),
        memory(config, said),
        memory(config),
    )
    before = [take(of, 5, first) for of in (live, blind)]
    assert before[0].tobytes() == before[1].tobytes(), "labels of the commit itself come after it"
    assert quiet.labels is not None
    quiet.labels.before(5)
    assert quiet.take(first, scored=False) is None
    again.labels.before(5)  # type: ignore[union-attr]
    again.take(first)
    after = [take(of, 6, second) for of in (live, quiet, again, blind)]
    assert after[0].tobytes() == after[1].tobytes() == after[2].tobytes()
    assert (after[0] != after[3]).any()
    assert np.isfinite(after[0]).all() and ((after[0] >= 0) & (after[0] <= 1)).all()


def test_labels_of_the_future_change_nothing(tmp_path: Path) -> None:
    """Those of later commits, and those that are visible later, until then."""
    config = trained(tmp_path)
    events = later(config)
    pieces = [events.slice(10 * place, 10) for place in range(6)]
    end_us = [int(piece["t"][-1].as_py()) for piece in pieces]
    ids = events["event_id"].to_pylist()
    found = []
    for label in (0, 1):
        rows = [(ids[row], label, end_us[3], 5) for row in range(5)]  # known to the fifth piece on
        rows += [(ids[5 + row], label, end_us[0], 9) for row in range(5)]  # to the fifth on, by its commit
        of = memory(config, topic(*sorted(rows, key=lambda row: row[3])))
        found.append([take(of, 6 + place, piece) for place, piece in enumerate(pieces)])
    same = [one.tobytes() == other.tobytes() for one, other in zip(*found, strict=True)]
    assert same == [True, True, True, True, False, False]


def test_a_question_has_the_probability_of_the_next_commit_and_changes_nothing(tmp_path: Path) -> None:
    config = trained(tmp_path, negative_after_s=1.5)
    events = later(config)
    first, rest = events.slice(0, 30), events.slice(30)
    now_us = int(first["t"][-1].as_py())
    ids = first["event_id"].to_pylist()
    said = topic(
        *[(one, row % 2, now_us + 200_000 * row, 5) for row, one in enumerate(ids)], ("none", 1, now_us, 5)
    )
    asked, never = memory(config, said, vectors=True), memory(config, said)
    for of in (asked, never):
        take(of, 5, first)
    assert isinstance(asked, ArrivalMemory) and asked.labels is not None
    asked.labels.before(6)
    ends = [(int(first["src"][3].as_py()), int(first["dst"][3].as_py())), (1, NEW), (NEW, NEW), (2, 3)]
    for place, (src, dst) in enumerate(ends):
        t = now_us + place * SECOND + 1
        amount = 3.5 + place
        columns = {"src": src, "dst": dst, "t": t, "weight": amount, "label": None}
        event = rest.slice(0, 1)
        for name, value in columns.items():
            field = event.schema.field(name)
            event = event.set_column(event.schema.get_field_index(name), field, pa.array([value], field.type))
        values = values_asked([amount, None], [None, None], 0)
        given = pa.array([src, 5]), pa.array([dst, 6]), np.array([t, t + SECOND])
        alone = [column[:1] for column in given]
        answer = asked.ask(*alone, values[:1])
        both = asked.ask(*given, values)
        message, other = take(asked, 6 + place, event), take(never, 6 + place, event)
        assert probability(answer).tobytes() == message.tobytes() == other.tobytes()
        np.testing.assert_allclose(probability(both)[0], message[0], rtol=1e-4)
        assert asked.ask(*alone).label_probability is None, "nobody asked for it"
        asked.labels.before(7 + place)


def test_a_memory_from_the_beginning_of_the_log_has_the_classifier_and_all_labels(tmp_path: Path) -> None:
    config = trained(tmp_path)
    of = memory(config, learned=False)
    (arrived,) = Arrivals(LogReader(config.store)).new()
    found = take(of, arrived.commit, arrived.events)
    label = pc.drop_null(arrived.events["label"]).to_numpy()
    assert found[label == 1].mean() > found[label == 0].mean() + 0.2
    assert of.take(arrived.events.slice(0, 1)).vectors is None  # type: ignore[union-attr]


def test_links_alone_have_no_probability(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=labelled())
    config = config_for(tmp_path, **EVENT_MODEL)
    run(config, snapshots=LEARNED)
    scored = memory(config).take(later(config))
    assert scored is not None and scored.label_probability is None


def test_labels_as_messages_are_refused(tmp_path: Path) -> None:
    config = trained(tmp_path, messages=True)
    with pytest.raises(Failure, match=r"key task_params: messages is true, and .* Leave it out"):
        memory(config)
