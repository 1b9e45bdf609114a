"""What readers of messages hand on: rows with their places, and what became no event."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.events import Reason
from stream.decode.validate import Draft

Int64Array = npt.NDArray[np.int64]


class RefusedError(Exception):
    """A message, or a file's column, that cannot be read as events; the text is fit for users."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message of a poll, or one row of it, that became no event.

    Attributes:
        message: Index of the message among those read.
        row: Row of an Arrow message; None: the whole message.
        raw: What stands for it in the dead letters; None: the message itself.
    """

    message: int
    row: int | None
    reason: Reason
    sentence: str
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that were read together, in the order of the messages.

    Attributes:
        draft: The rows.
        messages: int64, the index of each row's message among those read.
        rows: int64, the row within its message; None: a message is one row.
    """

    draft: Draft
    messages: Int64Array
    rows: Int64Array | None = None
