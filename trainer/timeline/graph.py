"""The host side of the timeline: the changes of each of the last snapshots, O(changes) per snapshot."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from schemas.events import Op
from schemas.trainer_config import Smoothing
from stream.arrays.growing import Growing
from stream.arrays.kinds import Bool, Int64
from stream.kernels.node_sets import distinct
from stream.snapshots.pairs import pair_keys, split_keys
from stream.store.log.event_columns import EventColumns
from stream.store.window.pairs import ChangedPairs
from stream.store.window.view import WindowView
from trainer.timeline.smoothing import Entries, members, raw_entries, totals, union
from trainer.timeline.snapshot import Snapshot, activity, raw


class TimelineGraph:
    """The last snapshots of a graph by difference; without smoothing they are a window's own differences.

    Nodes are dense ids. The cost of ``advance`` does not depend on the number of live pairs.

    Args:
        length: Largest number of available snapshots.
        smoothing: Of every snapshot.
        window: Of all parts, with as many snapshots; advanced before the timeline. Not asked with smoothing.

    Attributes:
        snapshots: Oldest first; with smoothing, those before the last ``length`` that are still part of one.
        begun: How often it was begun; earlier snapshots are invalid after that.
    """

    def __init__(self, length: int, smoothing: Smoothing, window: WindowView) -> None:
        self.length, self.smoothing = length, smoothing
        self._window = window
        self.snapshots: deque[Snapshot] = deque(maxlen=length + smoothing.length - 1)
        self.begun = 0
        self._degree = Growing(0, np.int32)  # directed pairs at a node; a self-loop counts once

    @property
    def smooths(self) -> bool:
        """Whether snapshots are smoothed."""
        return self.smoothing.kind != "none"

    @property
    def taus(self) -> list[int]:
        """Interval indices of the available snapshots."""
        return [snapshot.tau for snapshot in self.snapshots][-self.length :]

    def begin(self, number: int, tau: int, num_nodes: int, events: EventColumns) -> None:
        """Begin with a snapshot, without knowledge of earlier ones. O(pairs).

        Args:
            number: Of the snapshot.
            tau: Interval index.
            num_nodes: Dense ids in use.
            events: Its edge events.
        """
        self.begun += 1
        self.snapshots.clear()
        if self.smooths:
            self.snapshots.append(self._raw(number, tau, num_nodes, events))
            return
        src, dst, _ = self._window.pairs(tau)
        linked = src != dst
        self._degree.replace(np.bincount(np.concatenate([src, dst[linked]]), minlength=num_nodes))
        live, none = np.flatnonzero(self._degree.values), np.empty(0, np.int64)
        counts = len(_undirected_keys(src[linked], dst[linked])), int(np.count_nonzero(linked))
        self.snapshots.append(
            Snapshot(number, tau, num_nodes, live, none, None, None, counts, *activity(events))
        )

    def advance(self, number: int, tau: int, num_nodes: int, events: EventColumns) -> None:
        """Take in the next snapshot.

        Args:
            number: One more than the newest's.
            tau: Interval index.
            num_nodes: Dense ids in use.
            events: Its edge events.
        """
        if self.smooths:
            self.snapshots.append(self._raw(number, tau, num_nodes, events))
            return
        changes = self._window.changes(tau)
        entered, left = self._count(changes, num_nodes)
        src, dst = split_keys(changes.keys)
        directed = _chosen(changes, src != dst)
        undirected = self._undirected(directed, tau)
        counts = [
            before + int(np.isnan(part.before).sum()) - int(np.isnan(part.after).sum())
            for before, part in zip(self.snapshots[-1].pairs, (undirected, directed), strict=True)
        ]
        self.snapshots.append(
            Snapshot(
                number, tau, num_nodes, entered, left, undirected, directed, (counts[0], counts[1]),
                *activity(events),
            )
        )  # fmt: skip

    def place(self, tau: int) -> int:
        """Place of a snapshot in ``snapshots``."""
        taus = [snapshot.tau for snapshot in self.snapshots]
        if tau not in taus[-self.length :]:
            raise KeyError(f"snapshot {tau} is not on the timeline: it has {taus[-self.length :]}")
        return taus.index(tau)

    def members(self, place: int) -> list[Snapshot]:
        """The raw snapshots of the smoothed one at a place, oldest first."""
        taus = [snapshot.tau for snapshot in self.snapshots]
        return [self.snapshots[each] for each in members(self.smoothing, taus, place)]

    def change(self, place: int, *, directed: bool) -> ChangedPairs:
        """The difference between a snapshot and the one before it; not of the oldest."""
        part = self.snapshots[place].part(directed=directed)
        if isinstance(part, ChangedPairs):
            return part
        before, after = (raw(self.members(each), directed=directed) for each in (place - 1, place))
        turned = [*_only(after, before), *_only(before, after)]
        keys = np.unique(np.concatenate([np.empty(0, np.int64), *(part.keys for part in turned)]))
        return ChangedPairs(keys, totals(keys, before), totals(keys, after))

    def whole(self, place: int, *, directed: bool) -> Entries:
        """All of a snapshot; smoothed: the sums of its raw snapshots."""
        if self.smooths:
            return union(raw(self.members(place), directed=directed))
        src, dst, weight = self._window.pairs(self.snapshots[place].tau)
        linked = src != dst
        src, dst, weight = src[linked], dst[linked], weight[linked]
        if directed:
            return Entries(pair_keys(src, dst), weight)
        keys = _undirected_keys(src, dst)
        return Entries(keys, np.ones(len(keys), np.float32))

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self._degree.nbytes + sum(snapshot.nbytes for snapshot in self.snapshots)

    def _count(self, changes: ChangedPairs, num_nodes: int) -> tuple[Int64, Int64]:
        """Bring degrees up to date; returns the nodes that got their first pair and those that lost their last one."""
        came, went = np.isnan(changes.before), np.isnan(changes.after)
        turned = came | went
        src, dst = split_keys(changes.keys[turned])
        turn = np.where(came[turned], np.int32(1), np.int32(-1))
        linked = src != dst
        ends, turn = np.concatenate([src, dst[linked]]), np.concatenate([turn, turn[linked]])
        degree = self._degree.grow(num_nodes)
        before = degree[ends]
        np.add.at(degree, ends, turn)
        after = degree[ends]
        return distinct(ends[(before == 0) & (after > 0)]), distinct(ends[(before > 0) & (after == 0)])

    def _undirected(self, directed: ChangedPairs, tau: int) -> ChangedPairs:
        """The undirected pairs that came or went with directed ones of two nodes."""
        came, went = np.isnan(directed.before), np.isnan(directed.after)
        turned = np.flatnonzero(came | went)
        src, dst = split_keys(directed.keys[turned])
        opposite = pair_keys(dst, src)
        order = np.argsort(opposite)
        turned, opposite = turned[order], opposite[order]
        # The opposite pair either changed as well, or is now what it was.
        at = np.minimum(np.searchsorted(directed.keys, opposite), len(directed.keys) - 1)
        changed = directed.keys[at] == opposite
        was, now = ~came[at], ~went[at]
        was[~changed] = now[~changed] = self._window.holds(opposite[~changed], tau)
        lower_first = np.minimum(directed.keys[turned], opposite)
        new, old = (distinct(lower_first[turn]) for turn in (came[turned] & ~was, went[turned] & ~now))
        keys, nan = np.concatenate([new, old]), np.float32(np.nan)
        order = np.argsort(keys, kind="stable")  # two ascending runs are merged
        is_new = order < len(new)
        return ChangedPairs(
            keys[order], np.where(is_new, nan, np.float32(1)), np.where(is_new, np.float32(1), nan)
        )

    def _raw(self, number: int, tau: int, num_nodes: int, events: EventColumns) -> Snapshot:
        inserts = events.op == int(Op.INSERT)
        columns = events.src[inserts], events.dst[inserts], events.weight[inserts]
        undirected, directed = (raw_entries(*columns, directed=each) for each in (False, True))
        ends = np.unique(undirected.ends)
        return Snapshot(number, tau, num_nodes, ends, ends, undirected, directed, (0, 0), *activity(events))


def _chosen(pairs: ChangedPairs, chosen: Bool) -> ChangedPairs:
    return ChangedPairs(pairs.keys[chosen], pairs.before[chosen], pairs.after[chosen])


def _undirected_keys(src: Int64, dst: Int64) -> Int64:
    """Distinct keys of pairs, ascending, the lower id first."""
    return distinct(pair_keys(np.minimum(src, dst), np.maximum(src, dst)))


def _only(parts: Sequence[Entries], others: Sequence[Entries]) -> list[Entries]:
    return [part for part in parts if not any(part is other for other in others)]
