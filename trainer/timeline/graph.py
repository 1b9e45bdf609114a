"""The host side of the timeline: the changes of each of the last snapshots, O(changes) per snapshot."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from schemas.events import Op
from schemas.trainer_config import Smoothing
from stream.arrays.kinds import Float32, Int64
from stream.snapshots.delta import SnapshotDelta
from stream.snapshots.graph import LiveGraph
from stream.snapshots.pairs import Change, PairChanges, pair_keys
from stream.store.log.event_columns import EventColumns
from trainer.timeline.smoothing import Entries, members, raw_entries, totals, union
from trainer.timeline.snapshot import Changes, Snapshot, activity, raw

Pairs = tuple[Int64, Int64, Float32]


class TimelineGraph:
    """The last snapshots of a graph by difference; without smoothing they are a live graph's own differences.

    Nodes are dense ids. The cost of ``advance`` does not depend on the number of live pairs.

    Args:
        length: Largest number of available snapshots.
        smoothing: Of every snapshot.
        edge_life: Of the lane.
        pairs: The live directed pairs of a snapshot by its interval index, for ``whole``.

    Attributes:
        snapshots: Oldest first; with smoothing, those before the last ``length`` that are still part of one.
        begun: How often it was begun; earlier snapshots are invalid after that.
    """

    def __init__(
        self, length: int, smoothing: Smoothing, edge_life: int | None, pairs: Callable[[int], Pairs]
    ) -> None:
        self.length, self.smoothing = length, smoothing
        self._edge_life, self._pairs = edge_life, pairs
        self.snapshots: deque[Snapshot] = deque(maxlen=length + smoothing.length - 1)
        self.begun = 0
        self._graph = LiveGraph(edge_life=edge_life)

    @property
    def smooths(self) -> bool:
        """Whether snapshots are smoothed."""
        return self.smoothing.kind != "none"

    @property
    def taus(self) -> list[int]:
        """Interval indices of the available snapshots."""
        return [snapshot.tau for snapshot in self.snapshots][-self.length :]

    def begin(
        self,
        number: int,
        num_nodes: int,
        groups: Iterable[tuple[int, pa.Table]],
        events: EventColumns,
        tau: int,
    ) -> None:
        """Begin with a snapshot, without knowledge of earlier ones.

        Args:
            number: Of the snapshot.
            num_nodes: Dense ids in use.
            groups: (τ, edge events) that lead to its live graph; not needed with smoothing.
            events: Its own.
            tau: Interval index.
        """
        self.begun += 1
        self.snapshots.clear()
        self._graph = LiveGraph(edge_life=self._edge_life)
        if self.smooths:
            self.snapshots.append(self._raw(number, tau, num_nodes, events))
            return
        for then, table in groups:
            self._graph.apply(then, table)
        none, live = np.empty(0, np.int64), self._graph.pairs()
        counts = self._graph.num_pairs, int((live.src != live.dst).sum())
        self.snapshots.append(
            Snapshot(number, tau, num_nodes, self._graph.live(), none, None, None, counts, *activity(events))
        )

    def advance(
        self, number: int, tau: int, num_nodes: int, table: Callable[[], pa.Table], events: EventColumns
    ) -> None:
        """Take in the next snapshot.

        Args:
            number: One more than the newest's.
            tau: Interval index.
            num_nodes: Dense ids in use.
            table: Its rows of the log; not called with smoothing.
            events: Its edge events.
        """
        if self.smooths:
            self.snapshots.append(self._raw(number, tau, num_nodes, events))
            return
        delta = self._graph.apply(tau, table())
        undirected, directed = _undirected(delta), _directed(self._graph.changed())
        turned = np.isnan(directed.before).sum() - np.isnan(directed.after).sum()
        counts = self._graph.num_pairs, self.snapshots[-1].pairs[1] + int(turned)
        self.snapshots.append(
            Snapshot(
                number, tau, num_nodes, delta.entered, delta.left, undirected, directed, counts,
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

    def change(self, place: int, *, directed: bool) -> Changes:
        """The difference between a snapshot and the one before it; not of the oldest."""
        part = self.snapshots[place].part(directed=directed)
        if isinstance(part, Changes):
            return part
        before, after = (raw(self.members(each), directed=directed) for each in (place - 1, place))
        turned = [*_only(after, before), *_only(before, after)]
        keys = np.unique(np.concatenate([np.empty(0, np.int64), *(part.keys for part in turned)]))
        return Changes(keys, totals(keys, before), totals(keys, after))

    def whole(self, place: int, *, directed: bool) -> Entries:
        """All of a snapshot; smoothed: the sums of its raw snapshots."""
        if self.smooths:
            return union(raw(self.members(place), directed=directed))
        src, dst, weight = self._pairs(self.snapshots[place].tau)
        linked = src != dst
        src, dst, weight = src[linked], dst[linked], weight[linked]
        if directed:
            return Entries(pair_keys(src, dst), weight)
        keys = np.unique(pair_keys(np.minimum(src, dst), np.maximum(src, dst)))
        return Entries(keys, np.ones(len(keys), np.float32))

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self._graph.nbytes + sum(snapshot.nbytes for snapshot in self.snapshots)

    def _raw(self, number: int, tau: int, num_nodes: int, events: EventColumns) -> Snapshot:
        inserts = events.op == int(Op.INSERT)
        columns = events.src[inserts], events.dst[inserts], events.weight[inserts]
        undirected, directed = (raw_entries(*columns, directed=each) for each in (False, True))
        ends = np.unique(undirected.ends)
        return Snapshot(number, tau, num_nodes, ends, ends, undirected, directed, (0, 0), *activity(events))


def _undirected(delta: SnapshotDelta) -> Changes:
    keys = np.concatenate([pair_keys(pairs[:, 0], pairs[:, 1]) for pairs in (delta.added, delta.removed)])
    came = np.zeros(len(keys), np.bool_)
    came[: len(delta.added)] = True
    order = np.argsort(keys)
    nan = np.float32(np.nan)
    before, after = (np.where(each, np.float32(1), nan)[order] for each in (~came, came))
    return Changes(keys[order], before, after)


def _directed(changed: PairChanges) -> Changes:
    nan = np.float32(np.nan)
    before = np.where(changed.change == Change.ADDED, nan, changed.weight_before)
    after = np.where(changed.change == Change.REMOVED, nan, changed.weight)
    kept = (changed.src != changed.dst) & (before.view(np.int32) != after.view(np.int32))
    keys = pair_keys(changed.src, changed.dst)
    return Changes(keys[kept], before[kept], after[kept])


def _only(parts: Sequence[Entries], others: Sequence[Entries]) -> list[Entries]:
    return [part for part in parts if not any(part is other for other in others)]
