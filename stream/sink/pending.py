"""The messages taken in since the last commit."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from schemas.events import REJECT_SCHEMA, IdKind, Op, Reason, event_schema
from schemas.store import Position
from stream.decode.decoder import RAW_LIMIT_BYTES
from stream.decode.encode import encode_json
from stream.snapshots.event_time import Key
from stream.snapshots.sealing import Run
from stream.store.log.refusals import example_of
from stream.store.log.sealed import tail_schema


@dataclass(slots=True)
class Pending:
    """Events, rejects, positions and counts that the next commit makes durable."""

    batches: int = 0
    bytes: int = 0
    min_tau: int | None = None
    max_tau: int | None = None
    events: list[Run] = field(default_factory=list)
    rejects: list[pa.Table] = field(default_factory=list)
    positions: dict[Key, Position] = field(default_factory=dict)
    begins: dict[Key, int] = field(default_factory=dict)
    """First offset taken in per topic partition."""
    accepted: Counter[tuple[str, Op]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], str] = field(default_factory=dict)
    late: Counter[str] = field(default_factory=Counter)
    in_history: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    tombstones: Counter[str] = field(default_factory=Counter)

    def add_events(self, run: Run) -> None:
        """Add accepted events: columns of ``event_schema`` and ``offset``."""
        self.min_tau = run.min_tau if self.min_tau is None else min(run.min_tau, self.min_tau)
        self.max_tau = run.max_tau if self.max_tau is None else max(run.max_tau, self.max_tau)
        self.events.append(run)
        self.bytes += run.events.nbytes + run.tau.nbytes
        topic, _ = run.source
        counts = np.bincount(run.events["op"].to_numpy() + np.int8(1), minlength=len(Op))
        for op in Op:
            if counts[op + 1]:
                self.accepted[topic, op] += int(counts[op + 1])

    def add_rejects(self, topic: str, rows: pa.Table) -> None:
        """Add refused messages, ``REJECT_SCHEMA``; late ones are counted separately."""
        if rows.num_rows == 0:
            return
        self.rejects.append(rows)
        self.bytes += rows.nbytes
        for entry in rows["reason"].value_counts().to_pylist():
            if entry["values"] != Reason.LATE:
                self.refused[topic, entry["values"]] += entry["counts"]
                self.examples[topic, entry["values"]] = example_of(rows, entry["values"]) or ""

    def all_rejects(self) -> pa.Table:
        """All refused messages, in order of arrival."""
        return pa.concat_tables([REJECT_SCHEMA.empty_table(), *self.rejects])

    def refused_by_reason(self) -> dict[str, int]:
        """Refused messages of all topics together."""
        total: Counter[str] = Counter()
        for (_, reason), count in self.refused.items():
            total[reason] += count
        return dict(total)

    def followed_by(self, later: "Pending") -> "Pending":
        """Both together: a failed commit's content precedes later messages."""
        taus = [tau for some in (self, later) for tau in (some.min_tau, some.max_tau) if tau is not None]
        return Pending(
            batches=self.batches + later.batches,
            bytes=self.bytes + later.bytes,
            min_tau=min(taus, default=None),
            max_tau=max(taus, default=None),
            events=self.events + later.events,
            rejects=self.rejects + later.rejects,
            positions=self.positions | later.positions,
            begins=later.begins | self.begins,
            accepted=self.accepted + later.accepted,
            refused=self.refused + later.refused,
            examples=self.examples | later.examples,
            late=self.late + later.late,
            in_history=self.in_history + later.in_history,
            duplicates=self.duplicates + later.duplicates,
            tombstones=self.tombstones + later.tombstones,
        )


def rows_from(batch: pa.RecordBatch, start: int) -> pa.Table:
    """The rows of messages from offset ``start`` on."""
    table = pa.Table.from_batches([batch])
    offsets = table["offset"]
    if not len(offsets) or offsets[0].as_py() >= start:  # they are in order
        return table
    return table.filter(pa.array(offsets.to_numpy() >= start))


def tail_rows(runs: Iterable[Run], through: int | None, ids: IdKind) -> pa.Table:
    """Events of snapshots after τ = ``through``, with snapshot and origin: ``tail_schema``."""
    schema = tail_schema(ids)
    tables = [schema.empty_table()]
    for run in (run for run in (run.after(through) for run in runs) if run is not None):
        topic, partition = run.source
        rows = len(run)
        columns = [run.events[name] for name in event_schema(ids).names]
        columns.append(pa.DictionaryArray.from_arrays(np.zeros(rows, np.int16), [topic]))
        columns += [pa.array(np.full(rows, partition, np.int32)), run.events["offset"], pa.array(run.tau)]
        tables.append(pa.table(columns, schema=schema))
    return pa.concat_tables(tables)


def late_rejects(events: pa.Table, topic: str, partition: int, sealed_through: int) -> pa.Table:
    """Rejects for events whose snapshot is sealed, under the policy ``dead-letter``.

    Args:
        events: Canonical events with the columns ``offset`` and ``tau`` (the event's own τ); from Arrow messages also ``row``.
        topic: Their topic.
        partition: Their partition.
        sealed_through: Last closed τ.

    Returns:
        ``REJECT_SCHEMA``, one row per event; ``raw`` is the event as JSON with ``t`` in microseconds, because the message may
        hold others that were accepted.
    """
    rows = events.num_rows
    sentences = [
        f"its snapshot {tau} is sealed (all up to {sealed_through} are); raw is the event, t in microseconds"
        for tau in events["tau"].to_pylist()
    ]
    raw = [message[:RAW_LIMIT_BYTES] for message in encode_json(events, time_unit="us")]
    return pa.table(
        {
            "topic": pa.repeat(topic, rows),
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows),
            "offset": events["offset"],
            "row": events["row"] if "row" in events.column_names else pa.nulls(rows, pa.int32()),
            "reason": pa.repeat(Reason.LATE.value, rows),
            "sentence": pa.array(sentences, pa.string()),
            "raw": pa.array(raw, pa.binary()),
        },
        schema=REJECT_SCHEMA,
    )
