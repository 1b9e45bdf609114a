"""A format of another package with every mistake that its code can make; a message asks for one by its key ``fault``."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.events import Reason
from freshet_graph.stream.decode.formats.interface import Read
from freshet_graph.stream.decode.formats.plain import JsonFormat
from freshet_graph.stream.decode.reading import DecodedRows, Limits, refused_alike
from freshet_graph.stream.service.failure import Failure

NAME = "broken"


def _raising(error: BaseException) -> Callable[[Read], Read]:
    def change(_: Read) -> Read:
        raise error

    return change


def _with(name: str, column: Callable[[int], pa.Array]) -> Callable[[Read], Read]:
    """All rows with another column."""

    def change(read: Read) -> Read:
        rows = []
        for part in read.rows:
            batch = part.draft.batch
            place = batch.schema.get_field_index(name)
            rows.append(
                DecodedRows(
                    replace(part.draft, batch=batch.set_column(place, name, column(len(batch)))),
                    part.messages,
                )
            )
        return replace(read, rows=rows)

    return change


def _no_utf8(rows: int) -> pa.Array:
    ends = np.arange(rows + 1, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(b"\xff" * rows)])


def _sentence(read: Read) -> Read:
    for part in read.rows:
        part.draft.faults.refuse(np.ones(len(part.messages), bool), Reason.BAD_ID, lambda row: [][row])
    return read


def _refusing(message: int, reason: str) -> Callable[[Read], Read]:
    return lambda read: replace(
        read, refused=[*read.refused, refused_alike(np.array([message]), reason, "x")]
    )


FAULTS: dict[str, Callable[[Read], Read]] = {
    "a missing key": _raising(KeyError("rows")),
    "no more memory": _raising(MemoryError()),
    "recursion": _raising(RecursionError("maximum recursion depth exceeded")),
    "an end": _raising(StopIteration()),
    "no answer": lambda read: replace(read, rows=[], refused=[]),
    "nothing looked at": lambda read: replace(read, looked_at=0),
    "more looked at than there is": lambda read: replace(read, looked_at=read.looked_at + 1),
    "a message that is not there": _refusing(1_000, Reason.BAD_ID),
    "an unknown reason": _refusing(0, "made_up_as_it_goes"),
    "a row without op": _with("op", lambda rows: pa.nulls(rows, pa.int8())),
    "times as texts": _with("t", lambda rows: pa.array(["now"] * rows)),
    "text that is no UTF-8": _with("event_id", _no_utf8),
    "a sentence that raises": _sentence,
}


OBSTACLES = {
    "in prepare": TypeError("string indices must be integers"),
    "a file is away": FileNotFoundError(2, "", "descriptors.bin"),
    "no answer in time": TimeoutError("timed out"),
    "a sentence": Failure("topic edges: there are no descriptors. Name them"),
}
"""Errors of ``prepare``."""


def asking(fault: str, src: int = 1) -> bytes:
    """A message on which the code fails so."""
    return json.dumps({"src": src, "dst": 2, "t": 1_082_040_961, "fault": fault}).encode()


class BrokenFormat(JsonFormat):
    """JSON, read without a fault unless a message asks for one: then for all that are read with it."""

    name: ClassVar[str] = NAME

    def prepare(self, values: pa.LargeBinaryArray) -> None:
        """See ``MessageFormat.prepare``."""
        for value in values.to_pylist():
            for fault, error in OBSTACLES.items():
                if value is not None and json.dumps(fault).encode() in value:
                    raise error

    def read(self, values: pa.LargeBinaryArray, at_once: Limits | None) -> Read:
        """See ``MessageFormat.read``."""
        read: Any = super().read(values, at_once)
        for value in values.to_pylist():
            for fault, change in FAULTS.items():
                if json.dumps(fault).encode() in value:
                    read = change(read)
        return read
