"""The host side of the timeline: the changes of each of the last snapshots, O(changes) per snapshot; and smoothing."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from freshet_graph.schemas.events import Op
from freshet_graph.schemas.store import LaneManifest
from freshet_graph.schemas.trainer_config import Smoothing
from freshet_graph.stream.arrays.growing import Growing
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int64
from freshet_graph.stream.kernels.node_sets import distinct, locate
from freshet_graph.stream.snapshots.pairs import pair_keys, split_keys
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.stream.store.window.pairs import ChangedPairs
from freshet_graph.stream.store.window.view import WindowView
from freshet_graph.trainer.data.node_names import NodeNames
from freshet_graph.trainer.data.views import NamedGraph


@dataclass(frozen=True, slots=True)
class Entries:
    """Pairs with values: keys int64 (n,) as ``pair_keys``, ascending and distinct, and values float32 (n,)."""

    keys: Int64
    values: Float32

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def ends(self) -> Int64:
        """Both ends of each, int64 (2 n,)."""
        return np.concatenate([self.keys >> 32, self.keys & 0xFFFFFFFF])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.keys.nbytes + self.values.nbytes


def raw_entries(src: Int64, dst: Int64, weight: Float32, *, directed: bool) -> Entries:
    """A raw snapshot.

    Args:
        src: int64 (E,), of inserts in log order.
        dst: int64 (E,).
        weight: float32 (E,); only their magnitude counts, because a Laplacian has no negative weights.
        directed: Whether u → v and v → u are two pairs; otherwise one, the lower id first.

    Returns:
        The pairs of two nodes, with sums in order of the log.
    """
    linked = src != dst
    src, dst, weight = src[linked], dst[linked], np.abs(weight[linked])
    keys = pair_keys(src, dst) if directed else pair_keys(np.minimum(src, dst), np.maximum(src, dst))
    distinct, place = np.unique(keys, return_inverse=True)
    return Entries(distinct, np.bincount(place, weight, len(distinct)).astype(np.float32))


def members(smoothing: Smoothing, taus: Sequence[int], place: int) -> range:
    """Places of the raw snapshots of the smoothed one at ``place``.

    Args:
        smoothing: Of a kind other than none.
        taus: Interval indices, ascending.
        place: In ``taus``.
    """
    first = max(0, place - smoothing.length + 1)
    if smoothing.kind == "edge-life":
        while taus[first] <= taus[place] - smoothing.length:
            first += 1
    return range(first, place + 1)


def totals(keys: Int64, parts: Sequence[Entries]) -> Float32:
    """The sum of parts' values by key, float32, in the order of the parts; NaN where no part has the key.

    Args:
        keys: int64 (n,).
        parts: Oldest first.
    """
    total = np.full(len(keys), np.nan, np.float32)
    for part in parts:
        place, known = locate(part.keys, keys)
        total[known] = np.nan_to_num(total[known], nan=0.0) + part.values[place[known]]
    return total


def union(parts: Sequence[Entries]) -> Entries:
    """All keys of parts, with ``totals``."""
    keys = distinct(*(part.keys for part in parts))
    return Entries(keys, totals(keys, parts))


Part = ChangedPairs | Entries


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot of a horizon.

    Attributes:
        number: In the lane; that of the snapshot before is one less.
        tau: Interval index.
        num_nodes: Dense ids in use.
        entered: int64, nodes that have an edge since this snapshot (smoothed: in its raw events).
        left: int64, nodes that had one in the snapshot before.
        undirected: By pair, the lower id first: its changes, or with smoothing its raw events; None: it is the oldest.
        directed: The same by (source, destination).
        pairs: How many undirected and directed ones of two nodes it has; 0 with smoothing.
        active: int64, ascending ends of its inserts.
        activity: float32 (active, 2): log(1 + inserts as source, as destination).
    """

    number: int
    tau: int
    num_nodes: int
    entered: Int64
    left: Int64
    undirected: Part | None
    directed: Part | None
    pairs: tuple[int, int]
    active: Int64
    activity: Float32

    def part(self, *, directed: bool) -> Part | None:
        """``directed`` or ``undirected``."""
        return self.directed if directed else self.undirected

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        columns = (self.entered, self.left, self.active, self.activity, self.undirected, self.directed)
        return sum(column.nbytes for column in columns if column is not None)


def raw(snapshots: Sequence[Snapshot], *, directed: bool) -> list[Entries]:
    """The raw events of snapshots."""
    parts = [snapshot.part(directed=directed) for snapshot in snapshots]
    return [part for part in parts if isinstance(part, Entries)]


def activity(events: EventColumns) -> tuple[Int64, Float32]:
    """Ends of inserts, ascending, and log(1 + inserts as source, as destination) of each, float32 (n, 2)."""
    inserts = events.op == int(Op.INSERT)
    ends = events.src[inserts], events.dst[inserts]
    nodes = distinct(*ends)
    # Every end is one of the nodes, so a node's ends reach to the next node's first.
    counts = [np.diff(np.searchsorted(np.sort(end), nodes), append=len(end)) for end in ends]
    return nodes, np.log1p(np.stack(counts, axis=1)).astype(np.float32)


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
        return [self.snapshots[member] for member in members(self.smoothing, taus, place)]

    def change(self, place: int, *, directed: bool) -> ChangedPairs:
        """The difference between a snapshot and the one before it; not of the oldest."""
        part = self.snapshots[place].part(directed=directed)
        if isinstance(part, ChangedPairs):
            return part
        before, after = (raw(self.members(number), directed=directed) for number in (place - 1, place))
        turned = [*_only(after, before), *_only(before, after)]
        keys = distinct(*(part.keys for part in turned))
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
        place, changed = locate(directed.keys, opposite)
        was, now = ~came[place], ~went[place]
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
        undirected, directed = (raw_entries(*columns, directed=is_directed) for is_directed in (False, True))
        ends = np.unique(undirected.ends)
        return Snapshot(number, tau, num_nodes, ends, ends, undirected, directed, (0, 0), *activity(events))


def _chosen(pairs: ChangedPairs, chosen: Bool) -> ChangedPairs:
    return ChangedPairs(pairs.keys[chosen], pairs.before[chosen], pairs.after[chosen])


def _undirected_keys(src: Int64, dst: Int64) -> Int64:
    """Distinct keys of pairs, ascending, the lower id first."""
    return distinct(pair_keys(np.minimum(src, dst), np.maximum(src, dst)))


def _only(parts: Sequence[Entries], others: Sequence[Entries]) -> list[Entries]:
    return [part for part in parts if not any(part is other for other in others)]


class TimelineView(NamedGraph):
    """A view of all parts of a lane, with its timeline.

    Args:
        lane: The lane to follow.
        snapshots: H; one more is held, which is predicted from the others.
        smoothing: Of every snapshot.
        names: Advanced with the view; none is forgotten, because only event models have a budget.
        labels: See ``NamedEvents``.

    Attributes:
        timeline: Its last ``snapshots`` + 1.
    """

    def __init__(
        self, lane: LaneReader, snapshots: int, smoothing: Smoothing, names: NodeNames, *, labels: bool = True
    ) -> None:
        self._lane = lane
        self._window = WindowView(lane, snapshots + smoothing.length)
        super().__init__(self._window, names, labels=labels)
        self.timeline = TimelineGraph(snapshots + 1, smoothing, self._window)

    def advance(self, manifest: LaneManifest) -> None:
        """See ``EventsView.advance``; the timeline also takes in snapshots that were left out."""
        super().advance(manifest)
        manifests, taus = self._lane.manifests, self._window.taus
        known, newest = self.timeline.snapshots, manifest.sequence
        oldest = newest - len(taus) + 1
        if not known or known[-1].number < oldest:
            first = manifests[oldest]
            self.timeline.begin(oldest, first.tau, first.num_nodes, self.events(first.tau))
        for number in range(known[-1].number + 1, newest + 1):
            missed = manifests[number]
            self.timeline.advance(number, missed.tau, missed.num_nodes, self.events(missed.tau))

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return super().memory_bytes + self.timeline.memory_bytes
