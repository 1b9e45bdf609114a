"""The mails of all nodes, and how to go back to what they were."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.walks import WalkSketches
from trainer.models.memory.messages import Mail

Int64 = NDArray[np.int64]

NEVER = -1

LARGEST_MAIL = 1e6
"""Mails are cut off there, and what is no number is zero: one hostile event must not be passed on for ever."""


@dataclass(slots=True)
class _Journal:
    """Rows as they were at a mark; each saved once."""

    saved: NDArray[np.bool_]
    rows: list[tuple[Int64, Tensor, Int64, Int64]]
    walks: list[tuple[Int64, NDArray[np.float32], Int64]]


class Mailbox:
    """One mail a node: what its latest group of events left.

    Args:
        memory: d, width of states.
        edges: Width of edge inputs.
        dtype: Of mails.
        device: Where mails live; times stay on the host, which decides by them what to look up.
        walks: Sketches that go back with the mails; None without.

    Attributes:
        mail: (nodes, 2 · memory + edges): own, other, edge.
        event_us: int64 (nodes,), time of the latest event, −1 without one.
        former_us: int64 (nodes,), time of the node's latest event in an earlier group; of this one if there is none.
    """

    def __init__(
        self, memory: int, edges: int, dtype: torch.dtype, device: torch.device, walks: WalkSketches | None
    ) -> None:
        self._memory = memory
        self.walks = walks
        self.mail = torch.zeros(0, 2 * memory + edges, dtype=dtype, device=device)
        self.event_us: Int64 = np.zeros(0, np.int64)
        self.former_us: Int64 = np.zeros(0, np.int64)
        self._marks: list[_Journal] = []

    @property
    def own(self) -> Tensor:
        """(nodes, memory), states or embeddings just before the latest events."""
        return self.mail[:, : self._memory]

    def reserve(self, num_nodes: int) -> None:
        """Have rows for ids below ``num_nodes``."""
        more = num_nodes - len(self.event_us)
        if more <= 0:
            return
        more = max(more, len(self.event_us) // 4)
        self.mail = torch.cat([self.mail, self.mail.new_zeros(more, self.mail.shape[1])])
        self.event_us = np.concatenate([self.event_us, np.full(more, NEVER, np.int64)])
        self.former_us = np.concatenate([self.former_us, np.full(more, NEVER, np.int64)])
        if self.walks is not None:
            self.walks.reserve(len(self.event_us))
        for mark in self._marks:
            mark.saved = np.concatenate([mark.saved, np.zeros(more, np.bool_)])

    def put(self, nodes: Int64, mails: Tensor, time_us: Int64) -> None:
        """Leave a mail for each of some distinct nodes.

        Args:
            nodes: int64 (n,).
            mails: (n, 2 · memory + edges).
            time_us: int64 (n,), of the latest event of each.
        """
        self._keep(nodes)
        sound = mails.nan_to_num(0.0).clamp(-LARGEST_MAIL, LARGEST_MAIL)
        self.mail[torch.from_numpy(nodes).to(self.mail.device)] = sound
        former = self.event_us[nodes]
        self.former_us[nodes] = np.where(former == NEVER, time_us, former)
        self.event_us[nodes] = time_us

    def take(self, nodes: Int64) -> tuple[Int64, Mail]:
        """The mails of nodes: int64 (m,), which of ``nodes`` have one, and those."""
        known = nodes < len(self.event_us)
        if not known.all():
            known[known] = self.event_us[nodes[known]] != NEVER
        else:
            known = self.event_us[nodes] != NEVER
        there = np.flatnonzero(known)
        chosen = nodes[there]
        rows = self.mail[torch.from_numpy(chosen).to(self.mail.device)]
        gap_s = (self.event_us[chosen] - self.former_us[chosen]) / 1e6
        d = self._memory
        return there, Mail(
            rows[:, :d],
            rows[:, d : 2 * d],
            rows[:, 2 * d :],
            torch.from_numpy(gap_s).to(rows.device, rows.dtype),
        )

    def age_us(self, nodes: Int64, time_us: Int64) -> Int64:
        """Microseconds from each node's latest event to a time; 0 without one, or if that was later."""
        inside = nodes < len(self.event_us)
        last = (
            np.where(inside, self.event_us[np.where(inside, nodes, 0)], NEVER)
            if len(self.event_us)
            else NEVER
        )
        return np.where(last == NEVER, 0, np.maximum(time_us - last, 0))

    def mark(self) -> None:
        """From here on, remember what is overwritten, until ``back`` or ``forget``."""
        self._marks.append(_Journal(np.zeros(len(self.event_us), np.bool_), [], []))

    def back(self) -> None:
        """Everything as it was at the newest mark, which is gone then."""
        mark = self._marks.pop()
        for nodes, mails, event_us, former_us in mark.rows:
            self.mail[torch.from_numpy(nodes).to(self.mail.device)] = mails
            self.event_us[nodes] = event_us
            self.former_us[nodes] = former_us
        for nodes, sketch, time_us in mark.walks:
            assert self.walks is not None
            self.walks.sketch[nodes] = sketch
            self.walks.time_us[nodes] = time_us

    def forget(self) -> None:
        """Forget all marks: what is, stays."""
        self._marks.clear()

    def state(self) -> dict[str, Any]:
        """Everything, as tensors and arrays."""
        walks = {} if self.walks is None else {"sketch": self.walks.sketch, "sketch_us": self.walks.time_us}
        return {"mail": self.mail.cpu(), "event_us": self.event_us, "former_us": self.former_us, **walks}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self.forget()
        self.mail = state["mail"].to(self.mail.device, self.mail.dtype, copy=True)
        self.event_us = np.asarray(state["event_us"]).copy()
        self.former_us = np.asarray(state["former_us"]).copy()
        if self.walks is not None:
            self.walks.sketch = np.asarray(state["sketch"]).copy()
            self.walks.time_us = np.asarray(state["sketch_us"]).copy()

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        walks = 0 if self.walks is None else self.walks.sketch.nbytes + self.walks.time_us.nbytes
        return self.mail.nbytes + self.event_us.nbytes + self.former_us.nbytes + walks

    def _keep(self, nodes: Int64) -> None:
        if not self._marks:
            return
        mark = self._marks[-1]
        fresh = nodes[~mark.saved[nodes]]
        mark.saved[fresh] = True
        rows = self.mail[torch.from_numpy(fresh).to(self.mail.device)]
        mark.rows.append((fresh, rows, self.event_us[fresh], self.former_us[fresh]))
        if self.walks is not None:
            mark.walks.append((fresh, self.walks.sketch[fresh], self.walks.time_us[fresh]))
