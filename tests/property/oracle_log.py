"""The log as plain lists: slow, obvious, and written from docs/semantics.md without the code under test."""

import copy
from dataclasses import dataclass, field
from typing import Any

Key = tuple[str, int]


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
    """Everything that is lost or kept together."""

    next: dict[Key, int] = field(default_factory=dict)
    max_t: dict[Key, int] = field(default_factory=dict)
    open: list[Open] = field(default_factory=list)
    sealed: dict[int, list[Open]] = field(default_factory=dict)
    rejects: list[tuple[Any, ...]] = field(default_factory=list)
    refused: int = 0
    late: int = 0


class OracleLog:
    """Offers, commits and crashes on Python lists; every partition has unread messages all the time."""

    def __init__(self, interval: int, lateness: int, policy: str) -> None:
        self.interval, self.lateness, self.policy = interval, lateness, policy
        self.now = State()
        self.durable = State()
        self.assigned: list[Key] = []
        self.sealed_through: int | None = None
        self.watermark: int | None = None

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
                tau = event["t"] // self.interval
                state.max_t[key] = max(event["t"], state.max_t.get(key, event["t"]))
                if self.sealed_through is not None and tau <= self.sealed_through:
                    state.late += 1
                    if self.policy == "dead-letter":
                        state.rejects.append((*key, offset, "late"))
                        continue
                    tau = self.sealed_through + 1
                state.open.append(Open(tau, event["t"], *key, offset, row, event))
        state.next[key] = max(end, start)

    def closed(self) -> int | None:
        """Last τ that may be closed now."""
        if all(key in self.now.max_t for key in self.assigned) and self.assigned:
            low = min(self.now.max_t[key] for key in self.assigned) - self.lateness
            self.watermark = low if self.watermark is None else max(low, self.watermark)
        through = None if self.watermark is None else self.watermark // self.interval - 1
        known = [tau for tau in (through, self.sealed_through) if tau is not None]
        return max(known, default=None)

    def must_seal(self) -> bool:
        closed = self.closed()
        return closed is not None and any(row.tau <= closed for row in self.now.open)

    def commit(self, *, everything: bool = False) -> None:
        closed = self.closed()
        if everything and self.now.open:
            top = max(row.tau for row in self.now.open)
            closed = top if closed is None else max(closed, top)
        if closed is not None:
            for row in self.now.open:
                if row.tau <= closed:
                    assert row.tau not in self.durable.sealed, "a sealed snapshot never changes"
                    self.now.sealed.setdefault(row.tau, []).append(row)
            self.now.open = [row for row in self.now.open if row.tau > closed]
        self.sealed_through = closed
        self.durable = copy.deepcopy(self.now)

    def crash(self) -> None:
        self.now = copy.deepcopy(self.durable)
        self.watermark = None

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
