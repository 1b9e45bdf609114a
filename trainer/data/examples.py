"""One snapshot as link prediction: its events, their negatives, and the knowledge just before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from freshet_graph.schemas.events import Op
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int64
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.data.history import History, Inserts
from freshet_graph.trainer.data.negatives import (
    NONE,
    Draw,
    NegativePool,
    Negatives,
    destination_pool,
    historical_pairs,
)
from freshet_graph.trainer.device import to_device


class Purpose(IntEnum):
    """Purpose of a draw. Each has its own stream of random numbers."""

    RANDOM = 0
    HISTORICAL = 1
    CANDIDATES = 2
    RANKED_EVENTS = 3
    SAMPLED_EVENTS = 4
    SAMPLED_LINKS = 5
    TRAINING = 16  # plus the epoch
    LEARNED_EVENTS = 1 << 20  # plus the epoch


@dataclass(frozen=True, slots=True)
class Queries:
    """Questions for the likelihood of pairs, each just before one event.

    Attributes:
        event: int64 (Q,), position of the event among the snapshot's inserts, ascending.
        src: int64 (Q,).
        dst: int64 (Q,).
        encounters: float32 (Q, len(Encounter)).
        time_us: int64 (Q,), visible time of the event, microseconds.
        before_us: int64 (Q,), only strictly earlier events may be seen; at most ``time_us``, not decreasing.
    """

    event: Int64
    src: Int64
    dst: Int64
    encounters: Float32
    time_us: Int64
    before_us: Int64

    def __len__(self) -> int:
        return len(self.event)

    @property
    def ends(self) -> tuple[Int64, Int64]:
        """See ``QueryBatch.ends``: sources and destinations."""
        return self.src, self.dst

    def read(self, head: Callable[..., Tensor], rows: Sequence[Tensor]) -> Tensor:
        """See ``QueryBatch.read``: logits."""
        src, dst = rows
        return head(src, dst, to_device(self.encounters, src.device))

    def select(self, chosen: Bool | Int64) -> "Queries":
        """Some of the queries, by a mask or by places."""
        return Queries(*(getattr(self, name)[chosen] for name in _COLUMNS))

    def part(self, here: slice) -> "Queries":
        """Consecutive queries, as views."""
        return Queries(*(getattr(self, name)[here] for name in _COLUMNS))

    @classmethod
    def join(cls, parts: "list[Queries]") -> "Queries":
        """The parts one after the other; events no longer ascend."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))


_COLUMNS = tuple(field.name for field in fields(Queries))


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a snapshot that a rank learns, if it differs from the part that it predicts.

    Attributes:
        mine: bool (E,), the insert events.
        weigh: Relative frequency of each of some distinct destinations among negatives; 0: never.
    """

    mine: Bool
    weigh: Callable[[Int64], Int64]


@dataclass(frozen=True, slots=True)
class Examples:
    """This rank's share of a snapshot's events, with negatives.

    Attributes:
        tau: Snapshot.
        sequence: Its number in the log.
        inserts: All insert events of the snapshot, of all ranks.
        fresh: bool (E,): an end of the event was never seen before the snapshot (or the training split).
        every: int64, positions of all events of the examples, of all ranks.
        positive: One query per own event.
        learned: One query per event to learn: by default an own event that has a negative.
        training: Negatives to learn from, one for each learned query.
        random: Negatives for figures, one per own event that has one.
        sampled: int64, ascending positions of the events, of all ranks, for costly figures.
        historical: Negatives of own sampled events, if one could be drawn.
        candidates: ``num_candidates`` per own event of the ranked sample.
        num_candidates: Candidates per event.
        excluded: Events without figures, by reason, of all ranks.
        masked: bool (E,): an end of the event is hidden from training; None: no node is.
    """

    tau: int
    sequence: int
    inserts: Inserts
    fresh: Bool
    every: Int64
    positive: Queries
    learned: Queries
    training: Queries
    random: Queries
    sampled: Int64
    historical: Queries
    candidates: Queries
    num_candidates: int
    excluded: dict[str, int]
    masked: Bool | None = None
    queries_per_example: ClassVar[int] = 2
    """Questions per learned event: itself and a negative."""

    def __len__(self) -> int:
        return len(self.learned)

    @property
    def in_sample(self) -> Bool:
        """Which insert events are in ``sampled``, bool (E,)."""
        mask = np.zeros(len(self.inserts), np.bool_)
        mask[self.sampled] = True
        return mask

    @property
    def items(self) -> int:
        """Insert events of all ranks."""
        return len(self.inserts)

    @property
    def times(self) -> Int64:
        """See ``SnapshotExamples.times``."""
        return self.inserts.visible_us

    def part(self, chosen: Int64) -> tuple[Queries, Float32]:
        """See ``SnapshotExamples.part``: events, then their negatives."""
        positive, negative = (queries.select(chosen) for queries in (self.learned, self.training))
        truth = np.zeros(2 * len(chosen), np.float32)
        truth[: len(chosen)] = 1
        return Queries.join([positive, negative]), truth

    def of_events(self, chosen: Bool) -> "Examples":
        """The same examples with queries of some events only; ``chosen`` is bool (E,)."""
        parts: dict[str, Any] = {
            name: queries.select(chosen[queries.event])
            for name in ("positive", "learned", "training", "random", "historical", "candidates")
            for queries in [getattr(self, name)]
        }
        positions = {
            name: positions_of[chosen[positions_of]]
            for name in ("every", "sampled")
            for positions_of in [getattr(self, name)]
        }
        return replace(self, **positions, **parts)

    def only_random(self) -> "Examples":
        """The same examples without historical negatives and candidates: enough for AP and AUC."""
        none = slice(0, 0)
        return replace(self, historical=self.historical.part(none), candidates=self.candidates.part(none))


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling of negatives and events.

    Attributes:
        seed: The run's seed.
        candidates: Negatives per ranked event, for MRR and Hits@10.
        ranked_events: Largest number of sampled events that are ranked.
        pool: Destinations of negatives for figures; None: those seen up to and including the snapshot.
        training_pool: The same for negatives to learn from.
        events: Events of a snapshot, evenly over it, for costly figures; None: all of them.
    """

    seed: int = 0
    candidates: int = 50
    ranked_events: int = 200
    pool: Int64 | None = None
    training_pool: Int64 | None = None
    events: int | None = None


def insert_events(events: EventColumns) -> Inserts:
    """The insert events of a snapshot; deletes do not predict encounters."""
    inserts = events.op == int(Op.INSERT)
    return Inserts(events.src[inserts], events.dst[inserts], events.visible_t[inserts], events.late[inserts])


def prepare(
    tau: int,
    events: EventColumns,
    history: History,
    *,
    sequence: int,
    num_nodes: int,
    known: Bool,
    owned: Bool,
    sampling: Sampling,
    epoch: int = 0,
    share: Share | None = None,
    stored: Negatives | None = None,
    learns_all: bool = False,
) -> Examples:
    """Draw a snapshot's negatives and look up their encounters, then let ``history`` remember the snapshot.

    Every rank draws for all events, so the draws do not depend on ownership.

    Args:
        tau: Snapshot.
        events: Its edge events.
        history: All events before the snapshot; advanced.
        sequence: The snapshot's number in the log.
        num_nodes: Dense ids in use after the snapshot.
        known: bool (num_nodes,): nodes that are not new.
        owned: bool (num_nodes,): sources whose events belong to this rank.
        sampling: How negatives are drawn.
        epoch: Distinguishes the training negatives of repeated passes.
        share: The part that this rank learns; None: its own events.
        stored: Negatives for figures; None: they are drawn.
        learns_all: Whether this rank learns the events of all ranks.
    """
    inserts = insert_events(events)
    src, dst = inserts.src, inserts.dst

    def draw_for(purpose: int) -> Draw:
        return Draw(sampling.seed, sequence, purpose)

    seen = destination_pool(history, inserts)
    # on a stream, nodes of the future would be negatives that teach newness only
    pool = seen if sampling.training_pool is None else sampling.training_pool
    weights = None if share is None else share.weigh(pool)
    if weights is not None:
        pool, weights = pool[weights > 0], weights[weights > 0]
    every = np.arange(len(src), dtype=np.int64)
    mine = np.nonzero(owned[src])[0]
    taught = every if learns_all else mine if share is None else np.nonzero(share.mine)[0]
    training = NegativePool(inserts, pool, weights).draw(every, 1, draw_for(Purpose.TRAINING + epoch))[:, 0]
    taught = taught[training[taught] != NONE]
    sampled = spread(len(src), sampling.events, draw_for(Purpose.SAMPLED_EVENTS))
    if stored is None:
        others = NegativePool(inserts, seen if sampling.pool is None else sampling.pool)
        old_src, old_dst, drawable = historical_pairs(history, inserts, draw_for(Purpose.HISTORICAL))
        rankable = sampled[others.possible[sampled]]
        few = _sample(len(rankable), sampling.ranked_events, draw_for(Purpose.RANKED_EVENTS))
        stored = Negatives(
            random=others.draw(every, 1, draw_for(Purpose.RANDOM))[:, 0],
            historical_src=np.where(drawable & np.isin(every, sampled), old_src, NONE),
            historical_dst=old_dst,
            ranked=rankable[few],
            candidates=others.draw(rankable[few], sampling.candidates, draw_for(Purpose.CANDIDATES)),
        )
    opposed = stored.random != NONE
    opposed_events = mine[opposed[mine]]
    old = mine[stored.historical_src[mine] != NONE]
    own_ranked = np.nonzero(owned[src[stored.ranked]])[0]

    queries = [
        (mine, src[mine], dst[mine]),
        (taught, src[taught], training[taught]),
        (opposed_events, src[opposed_events], stored.random[opposed_events]),
        (old, stored.historical_src[old], stored.historical_dst[old]),
        _events_with_candidates(stored.ranked[own_ranked], src, stored.candidates[own_ranked]),
    ]
    if not np.array_equal(taught, mine):
        queries.append((taught, src[taught], dst[taught]))
    positive, negative, random, historical, candidates, *learned = _answer(
        queries, inserts, num_nodes, history
    )
    return Examples(
        tau=tau,
        sequence=sequence,
        inserts=inserts,
        fresh=~(known[src] & known[dst]),
        every=every,
        positive=positive,
        learned=learned[0] if learned else positive,
        training=negative,
        random=random,
        sampled=sampled,
        historical=historical,
        candidates=candidates,
        num_candidates=stored.candidates.shape[1],
        excluded={
            "late": int(inserts.late.sum()),
            "delete": int((events.op == int(Op.DELETE)).sum()),
            "no_negative": int((~opposed & ~inserts.late).sum()),
        },
    )


def spread(population: int, size: int | None, draw: Draw) -> Int64:
    """Distinct ascending positions, int64, one from each of ``size`` stretches of a circle.

    Stretches differ by one position at most. The circle is turned at random, so that every position is equally likely.
    """
    if size is None or population <= size:
        return np.arange(population, dtype=np.int64)
    random = draw.generator()
    begins = np.arange(size + 1, dtype=np.int64) * population // size
    places = begins[:-1] + random.integers(0, np.diff(begins)) + random.integers(population)
    return np.sort(places % population)


def _sample(population: int, size: int, draw: Draw) -> Int64:
    if population <= size:
        return np.arange(population, dtype=np.int64)
    return np.sort(draw.generator().choice(population, size, replace=False).astype(np.int64))


def _events_with_candidates(events: Int64, src: Int64, candidates: Int64) -> tuple[Int64, Int64, Int64]:
    repeated = np.repeat(events, candidates.shape[1])
    return repeated, src[repeated], candidates.ravel()


def _answer(
    queries: list[tuple[Int64, Int64, Int64]], inserts: Inserts, num_nodes: int, history: History
) -> list[Queries]:
    event, src, dst = (np.concatenate([query[column] for query in queries]) for column in range(3))
    order = np.argsort(event, kind="stable")
    before_us = history.visible_before(inserts)
    answered = history.replay(inserts, num_nodes, event[order], src[order], dst[order])
    encounters = np.empty_like(answered)
    encounters[order] = answered
    ends = np.cumsum([len(query[0]) for query in queries])
    every = Queries(event, src, dst, encounters, inserts.visible_us[event], before_us[event])
    return [every.part(slice(begin, end)) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
