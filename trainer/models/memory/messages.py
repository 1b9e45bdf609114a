"""The message function: the message of an event to each of its ends (TGN equations 1 and 2, SPEED section II-C)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from trainer.nn.rows import rows
from trainer.nn.time_encoding import TimeEncoder

Source = Literal["memory", "neighbourhood", "embedding"]
SOURCES: tuple[Source, ...] = ("memory", "neighbourhood", "embedding")


@dataclass(frozen=True, slots=True)
class Mail:
    """The mails of n nodes from their latest events. A node's state follows from its mail alone.

    Attributes:
        row: (n, d + other + edges): the node itself and the other end just before the events, and the events' inputs.
        gap_s: (n,), seconds from the node's former events to these, 0 if these are its first.
    """

    row: Tensor
    gap_s: Tensor


def pooled(states: Tensor, place: Tensor, there: Tensor) -> Tensor:
    """A node's neighbourhood: the largest σ(s) among its neighbours (DyRep's localized embedding, h_struct).

    Args:
        states: (n, d).
        place: int64 (R, K), neighbours among the states.
        there: bool (R, K), which exist.

    Returns:
        (R, d), zeros where there is no neighbour.
    """
    neighbours = rows(states, place).masked_fill(~there.unsqueeze(2), -torch.inf)
    return torch.sigmoid(neighbours.amax(dim=1))  # σ grows, so the largest is that of the largest


class Message(nn.Module):
    """[own ‖ other ‖ e ‖ φ(Δt)], or the same without ``own``; concatenation, as TGN's identity message.

    It stays in two parts, the mail's row, which has no gradient, and φ(Δt), which may have one. So the updater's
    backward pass does not compute the gradient of the larger part.

    Args:
        memory: d.
        other: Of what the other end sends.
        edges: Of e.
        time: The time encoder.
        own: Whether the node's own vector is part of it.

    Attributes:
        width: Of the message.
    """

    def __init__(self, memory: int, other: int, edges: int, time: TimeEncoder, *, own: bool) -> None:
        super().__init__()
        self.time = time
        self.width = (memory if own else 0) + other + edges + time.width

    def forward(self, mail: Mail) -> tuple[Tensor, Tensor]:
        """The mail's whole row (n, d + other + edges), even if only a part belongs to the message, and φ (n, T)."""
        return mail.row, self.time(mail.gap_s)
