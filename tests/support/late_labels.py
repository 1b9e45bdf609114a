"""Drawn streams of events and labels that come later, sealed by the stream's sink and learned by the daemon's trainer."""

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch
from hypothesis import strategies as st
from log_events import SECOND, Clock, event, poll, stream_config
from small_trainers import EVENT_MODEL, config_for, lines, trainer_for

from freshet_graph.schemas.config import Lane, Topic
from freshet_graph.schemas.trainer_config import Optimisation, TrainerConfig
from freshet_graph.stream.decode.labels import taken_schema
from freshet_graph.stream.microbatch import MicroBatch
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.trainer.continual.daemon import Trainer
from freshet_graph.trainer.labels.waiting import Waiting

EVENTS, LABELS = ("events", 0), ("labels", 0)
NODES, POLLS, A_POLL = 12, 14, 9
SNAPSHOTS_S = 7


@dataclass(frozen=True, slots=True)
class LabelMessage:
    """A message of the label topic: its id is that of an event or of a node."""

    event_id: str | None
    node: int | None
    label: int
    t_us: int
    priority: int


@dataclass(frozen=True)
class Stream:
    """What arrives, poll by poll.

    Attributes:
        events: Canonical events of each poll.
        labels: Messages of the label topic that come with each poll.
    """

    events: list[list[dict[str, Any]]]
    labels: list[list[LabelMessage]]


@st.composite
def streams(draw: Callable[..., Any], of_nodes: float = 0.2) -> Stream:
    """See ``drawn``."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return drawn(rng, draw(st.sampled_from([0.0, 0.4])), of_nodes)


def drawn(rng: np.random.Generator, own_share: float, of_nodes: float = 0.2) -> Stream:
    """Events in mild disorder, a share with a label of their own; labels of a topic, of events past, to come and unknown.

    ``of_nodes`` is the share of the topic's labels that are of nodes.
    """
    events: list[list[dict[str, Any]]] = []
    labels: list[list[LabelMessage]] = []
    number = 0
    for step in range(POLLS):
        begin_us = step * SNAPSHOTS_S * SECOND // POLLS
        rows = []
        for _ in range(A_POLL):
            late_us = int(rng.integers(0, 1_500_000)) if rng.random() < 0.1 else 0
            t_us = max(0, begin_us + int(rng.integers(0, SECOND // 2)) - late_us)
            src = int(rng.integers(NODES // 2))
            label = int(src < NODES // 4) if rng.random() < own_share else None
            dst = NODES // 2 + int(rng.integers(NODES // 2))
            rows.append(event(src, dst, t_us, event_id=f"e{number}", label=label, weight=float(1 + src)))
            number += 1
        events.append(rows)
        messages = []
        for _ in range(int(rng.integers(0, 8))):
            of_node = rng.random() < of_nodes
            messages.append(
                LabelMessage(
                    None if of_node else f"e{int(rng.integers(number + 5))}",
                    int(rng.integers(NODES)) if of_node else None,
                    int(rng.integers(2)),
                    max(0, begin_us + int(rng.integers(-2 * SECOND, SECOND))),
                    int(rng.integers(3)),
                )
            )
        labels.append(messages)
    return Stream(events, labels)


def later_and_flipped(stream: Stream, first: int, rng: np.random.Generator) -> Stream:
    """The same events; all label messages from a poll on arrive some polls later, or never, and say the contrary."""
    labels: list[list[LabelMessage]] = [
        list(messages) if step < first else [] for step, messages in enumerate(stream.labels)
    ]
    for step in range(first, len(labels)):
        for message in stream.labels[step]:
            arrives = step + int(rng.integers(0, 6))
            if arrives < len(labels):
                labels[arrives].append(replace(message, label=1 - message.label))
    return replace(stream, labels=labels)


def with_flipped_own(stream: Stream, event_ids: Collection[str]) -> Stream:
    """The same events; those of some ids have the contrary of the label that came with them."""
    events = [
        [
            {**row, "label": 1 - row["label"]}
            if row["label"] is not None and row["event_id"] in event_ids
            else row
            for row in rows
        ]
        for rows in stream.events
    ]
    return replace(stream, events=events)


def label_batch(messages: Sequence[LabelMessage], first: int) -> MicroBatch:
    """A decoded poll of the label topic."""
    rows = [
        {
            "event_id": one.event_id, "node": one.node, "label": one.label, "t": one.t_us, "priority": one.priority,
            "offset": first + place,
        }
        for place, one in enumerate(messages)
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema=taken_schema("int"))
    return replace(poll(*LABELS, [], first=first, end=first + len(rows)), labels=batch)


def write(store: Path, stream: Stream) -> Iterator[None]:
    """Commit a stream poll by poll; yields when snapshots were sealed and are in the lane ``hash``, in the end all of them."""
    config = stream_config(str(store), lateness_s=0.5)
    config.kafka.topics.append(Topic(name=LABELS[0], kind="labels"))
    with LogWriter.open(str(store), log_header(config)) as writer:
        sink = SnapshotSink(writer, config, clock=Clock())
        sink.assign([EVENTS, LABELS])
        event_offset = label_offset = sealed = 0
        for rows, messages in zip(stream.events, stream.labels, strict=True):
            numbered = [(event_offset + place, [row]) for place, row in enumerate(rows)]
            sink.offer(poll(*EVENTS, numbered, first=event_offset, end=event_offset + len(rows)))
            event_offset += len(rows)
            if messages:
                sink.offer(label_batch(messages, label_offset))
                label_offset += len(messages)
            sink.flush()
            if len(writer.snapshots) > sealed:
                sealed = len(writer.snapshots)
                _catch_up(store)
                yield
        while sink.seal_all() is not None:
            pass
        sink.close()
    _catch_up(store)
    yield


def _catch_up(store: Path) -> None:
    with LaneWriter(str(store), Lane(name="hash", algorithm="hash", parts=2)) as lane:
        lane.catch_up()


@dataclass
class Learned:
    """What a run left.

    Attributes:
        lines: Of the score file, without what depends on the clock.
        states: The content of a checkpoint after each snapshot, without the labels that events brought along.
        taus: Snapshots, in order.
        scores: Scores of each event by its number, float64 (scorers,), and the rows that it was scored with.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    taus: list[int] = field(default_factory=list)
    scores: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)


SNAPSHOT_MODEL = {"optimisation": Optimisation(epochs=1, batch_size=16, learning_rate=0.01)}
EVENT = {**EVENT_MODEL, **SNAPSHOT_MODEL}
WHOLE = {"model": "cdgcn", "strategy": "whole", "model_params": {"hidden": 8, "signature": 4}}
NODES_MODEL = {**SNAPSHOT_MODEL, **WHOLE}


def config_of(folder: Path, name: str, store: str, **more: Any) -> TrainerConfig:
    """A small trainer of one of a folder's stores, with checkpoints of a name."""
    own = {"store": str(folder / store), "checkpoint": str(folder / name), "checkpoint_every": 1_000}
    return config_for(folder, **{**more, **own})


def learn(config: TrainerConfig, store_grows: Iterator[None] | None, ends: Collection[int]) -> Learned:
    """Run the daemon's trainer over a store.

    Args:
        config: Of the trainer.
        store_grows: The store is written beside it; None: it is whole.
        ends: Numbers of snapshots after which the trainer is started again, from its checkpoint.
    """
    learned = Learned()
    trainer: Trainer | None = None
    scored = Waiting.scored

    def record(waiting: Waiting, first: int, rows: Any, scores: Any, *rest: Any) -> None:
        scored(waiting, first, rows, scores, *rest)
        for place in range(len(scores)):
            learned.scores[first + place] = scores[place].tobytes(), rows[place].tobytes()

    with patch.object(Waiting, "scored", record):
        for _ in store_grows if store_grows is not None else (None,):
            trainer = trainer or trainer_for(config)
            trainer.lane.refresh()
            for manifest in trainer.lane.manifests[trainer.sequence + 1 :]:
                trainer.step(manifest)
                learned.taus.append(manifest.tau)
                learned.states.append(copy.deepcopy(_without_given(trainer.session.state())))
                if manifest.sequence in ends:
                    trainer.save()
                    trainer = trainer_for(config)
    depends_on_start = ("lag", "transfer_bytes")
    learned.lines = [
        {key: value for key, value in line.items() if key not in depends_on_start} for line in lines(config)
    ]
    return learned


def _without_given(state: dict[str, Any]) -> dict[str, Any]:
    """A session's state without the labels that waiting events brought along, which nothing has seen yet."""
    if "labels" not in state:
        return state
    waiting = state["labels"]["waiting"]
    events = {name: column for name, column in waiting["events"].items() if name != "given"}
    return {**state, "labels": {**state["labels"], "waiting": {**waiting, "events": events}}}


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal to the bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, torch.Tensor):
        one, other = one.numpy(force=True), other.numpy(force=True)
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return bool(one == other)


def label_times(store: Path) -> list[int]:
    """``visible_us`` of each message of the label topic, in order of arrival."""
    times: list[int] = LogReader(str(store)).labels()["visible_us"].to_pylist()
    return times
