"""Events whose fields lie in several parts of a message, or beside it: the columns of each field from the part that has it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import IdKind, Op, Reason
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.decode.columns import is_valid, side_by_side
from freshet_graph.stream.decode.mapping import FIELDS_OF
from freshet_graph.stream.decode.mapping import Mapping as Fields
from freshet_graph.stream.decode.reading import DecodedRows
from freshet_graph.stream.decode.validate import Draft, Faults, draft_schema


class Merging:
    """Columns of events from several parts.

    Args:
        whole: All fields.
        parts: The mapping of each part; each field but listed features is in one of them.
        base: The part whose rows become events.
        ids: Kind of node ids of the graph.

    Attributes:
        columns: The part of each column of events that the base lacks.
        is_node: Whether the node is not in the base, so that every row is a node event.
    """

    def __init__(self, whole: Fields, parts: Mapping[str, Fields], base: str, ids: IdKind) -> None:
        self._base = base
        self.columns = {
            column: part
            for part, mapping in parts.items()
            for column in draft_schema(ids).names
            if part != base and mapping.names & {*FIELDS_OF.get(column, (column,))}
        }
        in_base = parts[base].names
        self.is_node = "node" in whole.names - in_base
        self._may_be_node = "node" in in_base
        # Of each of listed features: the part that has it, its place there, and its name in sentences.
        self._listed: list[tuple[str, int, str]] = []
        if whole.feature_parts and "features" in self.columns:
            part_of = {
                keys: part
                for part, mapping in parts.items()
                for (name, _), keys in mapping.paths
                if name == "features"
            }
            counts: Counter[str] = Counter()
            for (name, number), keys in whole.paths:
                if name == "features":
                    part = part_of[keys]
                    self._listed.append((part, counts[part], whole.shown(name, number)))
                    counts[part] += 1

    def filled(self, rows: DecodedRows, drafts: Mapping[str, Draft], places: Int64) -> DecodedRows:
        """Rows of the base with the fields of the other parts.

        Args:
            rows: Of the base.
            drafts: The other parts, of which only their own fields mean anything.
            places: int64, the row in ``drafts`` of each row.
        """
        value = rows.draft
        taken: dict[str, pa.RecordBatch] = {}
        for part, draft in drafts.items():
            whole = len(places) == len(draft.batch) and bool((places == np.arange(len(places))).all())
            taken[part] = draft.batch if whole else draft.batch.take(pa.array(places))
            for code, (reason, sentence) in enumerate(draft.faults.kinds, start=1):
                value.faults.refuse(draft.faults.code[places] == code, reason, of_record(sentence, places))
        columns = dict(zip(value.batch.schema.names, value.batch.columns, strict=True))
        is_node = pc.equal(columns["op"], int(Op.NODE)) if self._may_be_node else None
        for column, part in self.columns.items():
            if column == "features" and self._listed:
                continue
            other = taken[part][column]
            of_edges = column in ("src", "dst", "op") and is_node is not None
            columns[column] = pc.if_else(is_node, columns[column], other) if of_edges else other
        if self._listed:
            columns["features"] = self._features({self._base: value.batch} | taken, value.faults)
        if not self.is_node and is_node is None and "dst" in self.columns:
            # A reader of columns took the missing dst for that of a node event.
            edge = pc.and_(pc.equal(columns["op"], int(Op.NODE)), columns["dst"].is_valid())
            columns["op"] = pc.if_else(edge, pa.scalar(int(Op.INSERT), pa.int8()), columns["op"])
        batch = pa.RecordBatch.from_arrays(
            [columns[n] for n in value.batch.schema.names], schema=value.batch.schema
        )
        return replace(rows, draft=Draft(batch, value.faults))

    def _features(self, batches: Mapping[str, pa.RecordBatch], faults: Faults) -> pa.Array:
        parts = [pc.list_element(batches[part]["features"], place) for part, place, _ in self._listed]
        given = np.array([is_valid(part) for part in parts])
        for row_given, (*_, shown) in zip(given, self._listed, strict=True):
            missing = ~row_given & given.any(axis=0)
            faults.refuse(
                missing, Reason.MISSING_FIELD, f"{shown} is missing, but others of features are given"
            )
        return side_by_side(parts, batches[self._base].num_rows)


def of_record(sentence: str | Callable[[int], str], places: Int64) -> str | Callable[[int], str]:
    """A sentence about the place of each row."""
    return (lambda row: sentence(int(places[row]))) if callable(sentence) else sentence


def whole_draft(
    count: int, ids: IdKind, rows: Sequence[DecodedRows], refused: Sequence[pa.Table], what: str
) -> Draft:
    """One draft of so many messages: those without rows are null, and faults if they were refused."""
    schema = draft_schema(ids)
    places, faults = np.full(count, -1), Faults.none(count)
    table = pa.Table.from_batches([one.draft.batch for one in rows], schema)
    first = 0
    for one in rows:
        messages, given = one.messages, one.draft.faults
        places[messages] = np.arange(first, first + len(messages))
        row_of = np.zeros(count, np.int64)
        row_of[messages] = np.arange(len(messages))
        for code, (reason, sentence) in enumerate(given.kinds, start=1):
            where = np.zeros(count, bool)
            where[messages[given.code == code]] = True
            faults.refuse(where, reason, of_record(sentence, row_of))
        first += len(messages)
    for message, reason, sentence in _listed(refused):
        known = reason if reason in {*Reason} else Reason.WRONG_TYPE
        where = np.arange(count) == message
        faults.refuse(where, known, sentence if known == reason else f"{what}: {sentence}")
    taken = table.take(pa.array(places, mask=places < 0)).combine_chunks().to_batches()
    batch = taken[0] if taken else pa.RecordBatch.from_pylist([], schema)
    for name, default in (("op", int(Op.INSERT)), ("weight", 1.0)):
        place = schema.get_field_index(name)
        batch = batch.set_column(place, schema.field(place), batch[name].fill_null(default))
    return Draft(batch, faults)


def _listed(refused: Sequence[pa.Table]) -> Iterator[tuple[int, str, str]]:
    for table in refused:
        yield from zip(*(table[name].to_pylist() for name in ("message", "reason", "sentence")), strict=True)
