"""The log as plain lists: slow, obvious, and written from docs/semantics.md without the code under test."""

import copy
from dataclasses import dataclass, field
from typing import Any

Key = tuple[str, int]

OUTAGE_S = 10.0
"""Brokers that say nothing for longer are out."""


@dataclass
class Open:
    """One accepted event that isn't sealed yet."""

    tau: int
    t: int
    topic: str
    partition: int
    offset: int
    row: int
    event: dict[str, Any]

    def order(self) -> tuple[Any, ...]:
        return (self.t, self.topic, self.partition, self.offset, self.row)


@dataclass
class State:
    """Everything that a commit makes durable together."""

    next: dict[Key, int] = field(default_factory=dict)
    max_t: dict[Key, int] = field(default_factory=dict)
    open: list[Open] = field(default_factory=list)
    sealed: dict[int, list[Open]] = field(default_factory=dict)
    sealed_through: int | None = None
    rejects: list[tuple[Any, ...]] = field(default_factory=list)
    refused: int = 0
    late: int = 0
    in_history: int = 0


@dataclass
class Rules:
    """What a configuration and a history ask for; times in microseconds where they aren't seconds."""

    interval: int
    lateness: int
    policy: str
    idle_timeout_s: float = 1e9
    idle_seal_s: float | None = None
    until: int | None = None  # the history's end, and where it ends in each topic partition
    ends: dict[Key, int] = field(default_factory=dict)


class OracleLog:
    """Offers, what brokers say, commits that begin, end or fail, and crashes, on Python lists."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.now = State()
        self.durable = State()
        self.under_way: State | None = None
        self.assigned: list[Key] = []
        self.watermark: int | None = None
        self.nothing_unread: dict[Key, list[float]] = {}  # when brokers said so, without a break

    # What the source tells.

    def offer(
        self, key: Key, messages: list[tuple[int, list[dict[str, Any]] | None]], first: int, end: int
    ) -> None:
        state = self.now
        start = state.next.setdefault(key, first)
        for offset, events in messages:
            if offset < start:
                continue
            if events is None:
                state.rejects.append((*key, offset, "not_json"))
                state.refused += 1
                continue
            for row, event in enumerate(events):
                self.take_in(Open(0, event["t"], *key, offset, row, event))
        state.next[key] = max(end, start)

    def take_in(self, new: Open) -> None:
        state, rules, key = self.now, self.rules, (new.topic, new.partition)
        state.max_t[key] = max(new.t, state.max_t.get(key, new.t))
        if rules.until is not None and new.t < rules.until and new.offset < rules.ends.get(key, 0):
            state.in_history += 1
            return
        new.tau = new.t // rules.interval
        if state.sealed_through is not None and new.tau <= state.sealed_through:
            state.late += 1
            if rules.policy == "dead-letter":
                state.rejects.append((*key, new.offset, "late"))
                return
            new.tau = state.sealed_through + 1
        state.open.append(new)

    def heard(self, key: Key, now_s: float, *, unread: bool, messages: bool, answered: bool = True) -> None:
        """What brokers say of a partition; ``answered``: whether they say anything."""
        said = self.nothing_unread.get(key, [])
        if unread:
            self.nothing_unread[key] = []
        elif answered:
            unbroken = said and not messages and now_s - said[-1] <= OUTAGE_S
            self.nothing_unread[key] = [*said, now_s] if unbroken else [now_s]

    # Event time.

    def idle(self, key: Key) -> bool:
        said = self.nothing_unread.get(key, [])
        return bool(said) and said[-1] - said[0] >= self.rules.idle_timeout_s

    def closed(self) -> int | None:
        """Last τ that may be closed now."""
        busy = [key for key in self.assigned if not self.idle(key)]
        known = [self.now.max_t[key] for key in busy or self.assigned if key in self.now.max_t]
        if known and (not busy or len(known) == len(busy)):
            low = (min(known) if busy else max(known)) - self.rules.lateness
            self.watermark = low if self.watermark is None else max(low, self.watermark)
        through = None if self.watermark is None else self.watermark // self.rules.interval - 1
        allowed = [tau for tau in (through, self.now.sealed_through) if tau is not None]
        if self.rules.idle_seal_s is not None and self.assigned and not busy:
            runs = [self.nothing_unread[key] for key in self.assigned]
            last_idle = max(run[0] for run in runs) + self.rules.idle_timeout_s
            if min(run[-1] for run in runs) - last_idle >= self.rules.idle_seal_s:
                allowed += [row.tau for row in self.now.open]
        return max(allowed, default=None)

    def must_seal(self) -> bool:
        closed = self.closed()
        return closed is not None and any(row.tau <= closed for row in self.now.open)

    # Commits.

    def begin(self, closed: int | None) -> None:
        """A commit begins; one that was under way has ended, or this one couldn't begin."""
        if self.under_way is not None:
            self.durable = self.under_way
        if closed is not None:
            for row in self.now.open:
                if row.tau <= closed:
                    assert row.tau not in self.durable.sealed, "a sealed snapshot never changes"
                    self.now.sealed.setdefault(row.tau, []).append(row)
            self.now.open = [row for row in self.now.open if row.tau > closed]
        self.now.sealed_through = closed
        self.under_way = copy.deepcopy(self.now)

    def made(self) -> None:
        assert self.under_way is not None
        self.durable, self.under_way = self.under_way, None

    def crash(self, *, made: bool) -> None:
        """The process dies; ``made``: a commit under way got through."""
        if self.under_way is not None and made:
            self.durable = self.under_way
        self.under_way = None
        self.now = copy.deepcopy(self.durable)
        self.watermark = None
        self.nothing_unread = {}

    # What the log must hold.

    def snapshots(self) -> dict[int, list[dict[str, Any]]]:
        """Sealed snapshots in order of τ, their events in the log's order."""
        sealed = sorted(self.now.sealed.items())
        return {tau: [row.event for row in sorted(rows, key=Open.order)] for tau, rows in sealed}

    def dense(self) -> list[Any]:
        """External ids in dense order."""
        ids: dict[Any, None] = {}
        for events in self.snapshots().values():
            for event in events:
                ids.setdefault(event["src"])
                if event["dst"] is not None:
                    ids.setdefault(event["dst"])
        return list(ids)
