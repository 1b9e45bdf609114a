"""Events that wait for their labels, with the rows that they were scored with."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.arrays.kinds import Bool, Float16, Float32, Float64, Int8, Int64

NO_LABEL = -1
LEFT_OUT = -2
"""No label came in time, and none is expected: the platform stopped the event."""


@dataclass(frozen=True, slots=True)
class Events:
    """Scored events, in order of their visible times.

    Attributes:
        src: int64 (n,), numbers of nodes; −1: forgotten.
        dst: int64 (n,).
        time_us: int64 (n,), visible times, microseconds.
        given: int8 (n,), the label that came with the event, or −1.
        values: float32 (n, 1 + features), signed logarithms of weight and features.
        rows: float16 (n, classifiers, width), the inputs of each classifier's score. NaN: it was not scored.
        scores: float64 (n, scorers).
        probabilities: float64 (n, classifiers), of label 1, as they were when the events were scored.
        source: int64 (n,), see ``edge_classification``; unlike ``src`` it stays when nodes are forgotten.
        stopped: bool (n,), the platform stopped the event, so no label means nothing.
        weight: float64 (n,), how many events it stands for.
    """

    src: Int64
    dst: Int64
    time_us: Int64
    given: Int8
    values: Float32
    rows: Float16
    scores: Float64
    probabilities: Float64
    source: Int64
    stopped: Bool
    weight: Float64

    def __len__(self) -> int:
        return len(self.src)

    def select(self, chosen: NDArray[Any] | slice) -> "Events":
        """Some of them, by a mask, places or a slice."""
        return Events(*(getattr(self, name)[chosen] for name in _COLUMNS))

    @classmethod
    def join(cls, parts: Sequence["Events"]) -> "Events":
        """The parts one after the other."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))


_COLUMNS = tuple(field.name for field in fields(Events))


@dataclass(frozen=True, slots=True)
class VisibleLabels:
    """Labels that became visible within a snapshot, in order of these times.

    Attributes:
        number: int64 (n,), numbers of their events.
        label: int64 (n,), 0 or 1.
        visible_us: int64 (n,), microseconds; only strictly later events know the label.
        former: int64 (n,), the label that it replaces; −1: it is the event's first, which judges it.
        given: bool (n,), somebody gave it; otherwise ``negative_after_s`` went by.
    """

    number: Int64
    label: Int64
    visible_us: Int64
    former: Int64
    given: Bool

    def __len__(self) -> int:
        return len(self.number)

    @property
    def judging(self) -> "VisibleLabels":
        """Those that are the first of their event."""
        chosen = self.former == NO_LABEL
        return VisibleLabels(*(getattr(self, field.name)[chosen] for field in fields(self)))

    @property
    def change(self) -> Float64:
        """float64 (n, 2), what each adds to the number of labels, and of labels 1."""
        return change_of(self.label, self.former)


def change_of(label: Int64, former: Int64) -> Float64:
    """What labels int64 (n,) add to the number of labels, and of labels 1, float64 (n, 2); ``former`` as in ``VisibleLabels``."""
    is_first = former == NO_LABEL
    return np.stack([is_first, label - np.where(is_first, 0, former)], axis=1).astype(np.float64)


class Waiting:
    """Numbers events in order, and keeps them until all before them are judged.

    Args:
        delay_s: Seconds after which the label that came with an event becomes visible.
        negative_after_s: Seconds after which an event without a label is of class 0, unless it was
            stopped; None: it waits.
        most: Events that are kept at most; beyond, the oldest are forgotten. As many labels wait for their events.

    Attributes:
        first: Number of the oldest event that is kept.
        forgotten: Events that were dropped while they waited.
        left_out: Stopped events without a label after ``negative_after_s``.
        unknown: Labels of a topic whose event did not come, or came too long ago.
    """

    def __init__(self, delay_s: float, negative_after_s: float | None, most: int) -> None:
        self._delay_us = round(delay_s * US_PER_S)
        self._silent_us = None if negative_after_s is None else round(negative_after_s * US_PER_S)
        self._most = most
        self.first, self.forgotten, self.left_out, self.unknown = 0, 0, 0, 0
        self._until_us = BEFORE_ALL
        self._events: Events | None = None
        self._ids = pa.array([], pa.large_string())
        self._label: Int8 = np.zeros(0, np.int8)  # visible so far
        self._priority: Int8 = np.zeros(0, np.int8)
        self._early = LABELS.empty_table()  # labels of events that have not come

    def __len__(self) -> int:
        return len(self._label)

    def add(self, events: Events, ids: pa.Array | None = None) -> int:
        """Take in a snapshot's events and their ids, strings or null; returns the number of the first."""
        number = self.first + len(self)
        self._events = events if self._events is None else Events.join([self._events, events])
        ids = pa.nulls(len(events), pa.large_string()) if ids is None else ids.cast(pa.large_string())
        self._ids = pa.concat_arrays([self._ids, ids])
        self._label = np.concatenate([self._label, np.full(len(events), NO_LABEL, np.int8)])
        self._priority = np.concatenate([self._priority, np.zeros(len(events), np.int8)])
        self._drop(len(self) - self._most, lost=True)
        return number

    @property
    def unjudged(self) -> int:
        """Events that wait for a label."""
        return int((self._label == NO_LABEL).sum())

    @property
    def judged_until_us(self) -> int:
        """All events that were visible up to this time are judged, left out or forgotten, microseconds."""
        waits = np.flatnonzero(self._label == NO_LABEL)
        if self._events is None or not len(waits):
            return self._until_us - 1
        return int(self._events.time_us[waits[0]]) - 1

    def scored(self, first: int, rows: Float16, scores: Float64, probabilities: Float64) -> None:
        """Set what was said about events from number ``first`` on, as far as they are kept."""
        if self._events is None:
            return
        late = max(0, self.first - first)
        here = slice(first + late - self.first, first + len(scores) - self.first)
        self._events.rows[here] = rows[late:]
        self._events.scores[here] = scores[late:]
        self._events.probabilities[here] = probabilities[late:]

    def arrive(self, until_us: int, labels: pa.Table | None = None) -> VisibleLabels:
        """The labels that become visible before a time and did not before, in order.

        Args:
            until_us: Microseconds.
            labels: ``LABELS`` of topics that become visible before it, in order of arrival.
        """
        self._until_us = until_us
        if self._events is None:
            none = np.zeros(0, np.int64)
            return VisibleLabels(none, none, none, none, none == 1)
        events = self._events
        came_with = events.given != NO_LABEL
        visible_us = np.where(came_with, events.time_us + self._delay_us, np.iinfo(np.int64).max)
        silent_us = np.full(len(events), np.iinfo(np.int64).max)
        if self._silent_us is not None:
            silent_us = events.time_us + self._silent_us
            visible_us = np.where(events.stopped, visible_us, np.minimum(visible_us, silent_us))
        place = np.flatnonzero((self._label == NO_LABEL) & (visible_us < until_us))
        is_given = came_with[place] & (events.time_us[place] + self._delay_us == visible_us[place])
        label = np.where(is_given, events.given[place], 0)
        columns = [place, label, visible_us[place], np.zeros(len(place), np.int64), is_given]
        if labels is not None and len(labels) + len(self._early):
            columns = [np.concatenate(pair) for pair in zip(columns, self._of_topics(labels), strict=True)]
        order = np.argsort(columns[2], kind="stable")
        taken = self._taken(*(column[order].astype(np.int64) for column in columns))
        waits_in_vain = (self._label == NO_LABEL) & events.stopped & ~came_with & (silent_us < until_us)
        self._label[waits_in_vain] = LEFT_OUT
        self.left_out += int(waits_in_vain.sum())
        return taken

    def preview(self, until_us: int, labels: pa.Table | None = None) -> VisibleLabels:
        """What ``arrive`` would return; nothing changes."""
        ahead = copy.copy(self)
        ahead._label, ahead._priority = self._label.copy(), self._priority.copy()
        return ahead.arrive(until_us, labels)

    def of(self, numbers: Int64) -> Events:
        """Events by their numbers, as far as ``arrive`` has just named them."""
        assert self._events is not None
        return self._events.select(numbers - self.first)

    def clear_judged(self) -> None:
        """Let go of judged events before the oldest that still waits."""
        waits = np.flatnonzero(self._label == NO_LABEL)
        self._drop(int(waits[0]) if len(waits) else len(self), lost=False)

    def keep(self, kept_nodes: Int64) -> None:
        """Follow nodes that were renumbered: all except these, ascending, are forgotten."""
        if self._events is None:
            return
        for ends in (self._events.src, self._events.dst):
            place = np.searchsorted(kept_nodes, ends).clip(max=len(kept_nodes) - 1)
            ends[:] = np.where(kept_nodes[place] == ends, place, -1)

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        columns = {} if self._events is None else {name: getattr(self._events, name) for name in _COLUMNS}
        early = {name: self._early[name].to_numpy().copy() for name in LABELS.names[1:]}
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            **{"label": self._label, "priority": self._priority, "events": columns},
            "ids": as_numbers(self._ids),
            "early": {**early, "event_id": as_numbers(self._early["event_id"].combine_chunks())},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self.first, self.forgotten, self.left_out, self.unknown = (int(state[name]) for name in _COUNTS)
        self._label, self._priority = (np.asarray(state[name]).copy() for name in ("label", "priority"))
        if state["events"]:
            self._events = Events(*(np.asarray(state["events"][name]).copy() for name in _COLUMNS))
        self._ids = as_texts(state["ids"])
        early = [np.asarray(state["early"][name]) for name in LABELS.names[1:]]
        self._early = pa.table([as_texts(state["early"]["event_id"]), *early], schema=LABELS)

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        column_bytes = (
            0 if self._events is None else sum(getattr(self._events, name).nbytes for name in _COLUMNS)
        )
        return column_bytes + self._ids.nbytes + self._early.nbytes + 2 * len(self)

    def _of_topics(self, labels: pa.Table) -> list[Int64]:
        """Columns of the topics' labels whose events are here, for ``_taken``; the others wait."""
        assert self._events is not None
        every = pa.concat_tables([self._early, labels])
        # the few labels are hashed, not the many events
        named = np.flatnonzero(
            pc.is_in(self._ids, every["event_id"].combine_chunks()).to_numpy(zero_copy_only=False)
        )
        index = pc.index_in(every["event_id"], self._ids.take(pa.array(named))).fill_null(-1).to_numpy()
        place = np.append(named, -1)[index]
        self._early = every.filter(pa.array(place < 0))
        self.unknown += max(0, len(self._early) - self._most)
        self._early = self._early.slice(max(0, len(self._early) - self._most))
        here = np.flatnonzero(place >= 0)
        label, visible_us, priority = (every[name].to_numpy()[here] for name in LABELS.names[1:])
        place = place[here]
        visible_us = np.maximum(visible_us, self._events.time_us[place])
        return [place, label, visible_us, priority, np.ones(len(place), np.bool_)]

    def _taken(
        self, place: Int64, label: Int64, visible_us: Int64, priority: Int64, given: Int64
    ) -> VisibleLabels:
        """Those of some labels in order that are the first of their event, or replace another one."""
        former = np.full(len(place), NO_LABEL, np.int64)
        takes = np.ones(len(place), np.bool_)
        for index, (one, says, rank) in enumerate(
            zip(place.tolist(), label.tolist(), priority.tolist(), strict=True)
        ):
            former[index] = max(NO_LABEL, self._label[one])
            if former[index] != NO_LABEL and (rank < self._priority[one] or says == former[index]):
                takes[index] = False
                if rank < self._priority[one]:
                    continue
            self._label[one], self._priority[one] = says, rank
        return VisibleLabels(
            self.first + place[takes], label[takes], visible_us[takes], former[takes], given[takes] == 1
        )

    def _drop(self, count: int, *, lost: bool) -> None:
        if count <= 0 or self._events is None:
            return
        self.forgotten += int((self._label[:count] == NO_LABEL).sum()) if lost else 0
        self._events, self._ids = self._events.select(slice(count, None)), self._ids.slice(count)
        self._label, self._priority = self._label[count:], self._priority[count:]
        self.first += count


_COUNTS = ("first", "forgotten", "left_out", "unknown")
BEFORE_ALL = -(1 << 62)

LABELS = pa.schema(
    [
        ("event_id", pa.large_string()),
        ("label", pa.int64()),
        ("visible_us", pa.int64()),
        ("priority", pa.int64()),
    ]
)
"""Labels of topics, of 0 and 1."""


def zeros_and_ones(labels: pa.Table) -> pa.Table:
    """``LABELS`` of those among a log's labels that are of events, and 0 or 1."""
    is_right = pc.and_(labels["event_id"].is_valid(), pc.is_in(labels["label"], pa.array([0, 1], pa.int32())))
    return labels.filter(is_right).select(LABELS.names).cast(LABELS)


def as_numbers(texts: pa.Array) -> dict[str, NDArray[Any]]:
    """Texts as arrays of numbers, which checkpoints hold."""
    whole = pa.concat_arrays([texts])  # without an offset
    _, offsets, text_bytes = whole.buffers()
    return {
        "is_null": np.asarray(whole.is_null().to_numpy(zero_copy_only=False)),
        "ends": np.frombuffer(offsets, np.int64)[: len(whole) + 1].copy()
        if len(whole)
        else np.zeros(1, np.int64),
        "bytes": np.frombuffer(text_bytes or b"", np.uint8).copy(),
    }


def as_texts(numbers: dict[str, Any]) -> pa.Array:
    """The texts of ``as_numbers``."""
    is_null, ends, text_bytes = (np.asarray(numbers[name]) for name in ("is_null", "ends", "bytes"))
    content = text_bytes.tobytes()
    bounds = zip(ends[:-1].tolist(), ends[1:].tolist(), is_null.tolist(), strict=True)
    return pa.array([None if null else content[a:b].decode() for a, b, null in bounds], pa.large_string())
