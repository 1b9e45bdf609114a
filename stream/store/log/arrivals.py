"""The events of a log in order of arrival: commit by commit, open ones as soon as they are committed."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.sealed import COMMIT, UNKNOWN, tail_schema

EVENTS_AT_ONCE = 1 << 20
"""Sealed events gathered at a time; bounds the memory of a log that is read from its beginning."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """The events that came with one commit, by snapshot, and within one in the log's order.

    Attributes:
        commit: Its number; −1: they came before it was recorded, in the order of their snapshots.
        events: ``event_schema`` and ``tau``, the snapshot of each.
    """

    commit: int
    events: pa.Table


class Arrivals:
    """Follows a log. The order of its events does not depend on when they are looked at, open or sealed.

    Args:
        log: A reader of its own; it is refreshed here.
        after: Leave out the events of snapshots up to this number; −1: of none.
        done: Leave out commits up to this number as well.

    Attributes:
        done: The last commit that was given, or looked through.
        dropped: Snapshots that retention dropped before they were looked through; their open events may have been given.
    """

    def __init__(self, log: LogReader, after: int = -1, done: int = UNKNOWN - 1) -> None:
        self._log = log
        self._first = after + 1  # number of the first snapshot that may have new events
        self.dropped = 0
        self.done = done
        self._pass_dropped(counted=after >= 0)

    @property
    def last(self) -> CommitRecord | None:
        """The newest commit that was seen."""
        return self._log.last

    def new(self, until: int | None = None) -> Iterator[Arrived]:
        """The commits since the last call that have events, in order, up to commit ``until`` or the newest.

        Raises:
            RetainedError: A snapshot with events to give is no longer kept.
            CorruptError: A file doesn't match its commit.
        """
        self._log.refresh()
        open_events = self._log.open_events()  # may read newer commits
        last = self._log.last
        if last is None or last.n <= self.done:
            return
        self._pass_dropped()
        newest = last.n if until is None else min(until, last.n)
        end = len(self._log.snapshots)  # others may refresh the log between two commits
        numbers = range(self._first, end)
        firsts = [int(self._arrivals(number).min()) for number in numbers]
        later = _in_order(open_events)
        least = int(later[COMMIT].to_numpy().min()) if len(later) else newest + 1
        bounds = np.minimum.accumulate([*firsts, least][::-1])[::-1][
            1:
        ].tolist()  # no later snapshot has earlier ones
        waiting: list[pa.Table] = []
        for number, bound in zip(numbers, bounds, strict=True):
            waiting.append(self._sealed(number, newest))
            if sum(map(len, waiting)) >= EVENTS_AT_ONCE:
                now, rest = _split(pa.concat_tables(waiting), min(bound, newest + 1))
                waiting = [rest]
                yield from self._commits(now)
        yield from self._commits(pa.concat_tables([*waiting, self._unseen(later, newest)]))
        self.done = newest
        self._first = end if newest == last.n else self._first

    def covers(self, number: int) -> bool:
        """Whether all events of the sealed snapshots up to a number came with commits that were given.

        No, if the snapshot was sealed since the last look.
        """
        if number >= len(self._log.snapshots):
            return False
        numbers = range(self._first, number + 1)
        return all(int(self._arrivals(one).max()) <= self.done for one in numbers)

    def _pass_dropped(self, *, counted: bool = True) -> None:
        first = max(self._first, self._log.snapshots.first)
        self.dropped += counted * (first - self._first)
        self._first = first

    def _arrivals(self, number: int) -> np.ndarray:
        return self._log.arrivals(self._log.snapshots[number].tau)

    def _sealed(self, number: int, newest: int) -> pa.Table:
        tau = self._log.snapshots[number].tau
        events = self._log.events(tau).select(event_schema(self._log.header.ids).names)
        schema = tail_schema(self._log.header.ids)
        for name, column in (("tau", np.full(len(events), tau)), (COMMIT, self._arrivals(number))):
            events = events.append_column(schema.field(name), pa.array(column))
        return self._unseen(events, newest)

    def _unseen(self, events: pa.Table, newest: int) -> pa.Table:
        commit = events[COMMIT].to_numpy()
        return events.filter(pa.array((commit > self.done) & (commit <= newest)))

    def _commits(self, events: pa.Table) -> Iterator[Arrived]:
        """Rows by snapshot as commits, ascending."""
        if not len(events):
            return
        commit = events[COMMIT].to_numpy()
        order = np.argsort(commit, kind="stable")
        events, commit = events.take(pa.array(order)), commit[order]
        starts = np.flatnonzero(np.diff(commit, prepend=UNKNOWN - 1))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(commit)], strict=True):
            number = int(commit[start])
            yield Arrived(number, events.slice(start, end - start).drop_columns([COMMIT]))
            self.done = max(self.done, number)


def _in_order(tail: pa.Table) -> pa.Table:
    """Open events, in order of arrival, as their snapshots will order them."""
    topics = tail["topic"].cast(pa.string()).combine_chunks().dictionary_encode()
    rank = np.argsort(np.argsort(topics.dictionary.to_numpy(zero_copy_only=False), kind="stable"))
    topic = rank[topics.indices.to_numpy()] if len(tail) else np.empty(0, np.int64)
    keys = [tail[name].to_numpy() for name in ("offset", "partition")] + [topic]
    keys += [tail[name].to_numpy() for name in ("t", "tau")]
    return tail.take(pa.array(np.lexsort(keys))).drop_columns(["topic", "partition", "offset"])


def _split(events: pa.Table, bound: int) -> tuple[pa.Table, pa.Table]:
    """The rows of commits before a number, and the others."""
    before = events[COMMIT].to_numpy() < bound
    return events.filter(pa.array(before)), events.filter(pa.array(~before))
