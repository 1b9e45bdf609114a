"""Events that wait for their labels, with the rows that they were scored with."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.arrays.kinds import Float16, Float32, Float64, Int8, Int64

NO_LABEL = -1


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
    """

    src: Int64
    dst: Int64
    time_us: Int64
    given: Int8
    values: Float32
    rows: Float16
    scores: Float64

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
    """

    number: Int64
    label: Int64
    visible_us: Int64

    def __len__(self) -> int:
        return len(self.number)


class Waiting:
    """Numbers events in order, and keeps them until they are judged.

    Args:
        delay_s: Seconds after which the label that came with an event becomes visible.
        negative_after_s: Seconds after which an event without a label is of class 0; None: it waits.
        most: Events that wait at most; beyond, the oldest are forgotten.

    Attributes:
        first: Number of the oldest event that waits.
        forgotten: Events that were dropped while they waited.
    """

    def __init__(self, delay_s: float, negative_after_s: float | None, most: int) -> None:
        self._delay_us = round(delay_s * US_PER_S)
        self._silent_us = None if negative_after_s is None else round(negative_after_s * US_PER_S)
        self._most = most
        self.first, self.forgotten = 0, 0
        self._events: Events | None = None
        self._judged: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return len(self._judged)

    def add(self, events: Events) -> int:
        """Take in a snapshot's events; returns the number of the first."""
        number = self.first + len(self)
        self._events = events if self._events is None else Events.join([self._events, events])
        self._judged = np.concatenate([self._judged, np.zeros(len(events), np.bool_)])
        self._drop(len(self) - self._most, lost=True)
        return number

    def scored(self, first: int, rows: Float16, scores: Float64) -> None:
        """Set the rows and scores of events from number ``first`` on, as far as they still wait."""
        if self._events is None:
            return
        late = max(0, self.first - first)
        here = slice(first + late - self.first, first + len(scores) - self.first)
        self._events.rows[here] = rows[late:]
        self._events.scores[here] = scores[late:]

    def arrive(self, until_us: int) -> VisibleLabels:
        """The labels that become visible before a time and did not before, in order; their events are judged."""
        if self._events is None:
            return VisibleLabels(*np.zeros((3, 0), np.int64))
        events, open_ = self._events, ~self._judged
        came_with = events.given != NO_LABEL
        visible_us = np.where(came_with, events.time_us + self._delay_us, np.iinfo(np.int64).max)
        if self._silent_us is not None:
            visible_us = np.minimum(visible_us, events.time_us + self._silent_us)
        places = np.flatnonzero(open_ & (visible_us < until_us))
        places = places[np.argsort(visible_us[places], kind="stable")]
        self._judged[places] = True
        is_given = came_with[places] & (events.time_us[places] + self._delay_us == visible_us[places])
        label = np.where(is_given, events.given[places], 0).astype(np.int64)
        return VisibleLabels(self.first + places, label, visible_us[places])

    def of(self, numbers: Int64) -> Events:
        """Events by their numbers, as far as ``arrive`` has just named them."""
        assert self._events is not None
        return self._events.select(numbers - self.first)

    def clear_judged(self) -> None:
        """Let go of judged events before the oldest that still waits."""
        waits = np.flatnonzero(~self._judged)
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
        return {"first": self.first, "forgotten": self.forgotten, "judged": self._judged, "events": columns}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self.first, self.forgotten = int(state["first"]), int(state["forgotten"])
        self._judged = np.asarray(state["judged"]).copy()
        if state["events"]:
            self._events = Events(*(np.asarray(state["events"][name]).copy() for name in _COLUMNS))

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return 0 if self._events is None else sum(getattr(self._events, name).nbytes for name in _COLUMNS)

    def _drop(self, count: int, *, lost: bool) -> None:
        if count <= 0 or self._events is None:
            return
        self.forgotten += int((~self._judged[:count]).sum()) if lost else 0
        self._events, self._judged = self._events.select(slice(count, None)), self._judged[count:]
        self.first += count
