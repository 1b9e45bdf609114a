"""Copies of shared nodes on every rank while it learns, and their merge into one memory (SPEED section II-C)."""

from typing import Literal

import numpy as np
import torch

from stream.arrays.kinds import Bool, Float32, Int64
from trainer.data.walks import WalkSketches
from trainer.device import to_device
from trainer.ranks import Ranks
from trainer.strategies.events.mailbox import NEVER, Rows
from trainer.strategies.events.sharded_stream import ShardedStream

Synchronise = Literal["latest", "mean"]
SYNCHRONISE: tuple[Synchronise, ...] = ("latest", "mean")

_ABSENT = NEVER - 1


class SharedCopies:
    """The shared nodes' content at the beginning of separate learning, on every rank; made and merged by collectives.

    ``latest``: a node gets the mail and times of the copy with the latest event, for equal times of the lowest rank.
    ``mean``: the mean of the mails of all copies that had events, with the latest one's times. Walks add up: a sketch is a
    sum over events, and every event belongs to one rank, so the gains of all copies are summed.

    Args:
        stream: This rank's, with rows of its own nodes.
        shared: int64 (n,), shared nodes, ascending.
        mine: bool (n,), those that this rank owns.
        ranks: All ranks.
    """

    def __init__(self, stream: ShardedStream, shared: Int64, mine: Bool, ranks: Ranks) -> None:
        self._stream, self._ranks = stream, ranks
        self.nodes, self._mine = shared, mine
        mailbox = stream.mailbox
        known = mailbox.event_us[shared] != NEVER
        lent = shared[known & ~mine]
        mail, sketch, sketch_us = self._tables(shared[known], mine[known])
        foreign = ~mine[known]
        self._before, self._before_us = sketch, sketch_us
        self._known = known
        mailbox.lend(
            Rows(
                lent,
                mail[to_device(np.flatnonzero(foreign), mail.device)],
                mailbox.event_us[lent],
                mailbox.former_us[lent],
                None if sketch is None else sketch[foreign],
                None if sketch_us is None else sketch_us[foreign],
            )
        )

    def merge(self, how: Synchronise, ours: Int64, touched: Bool) -> None:
        """Merge all copies into one memory, send it to the owners, and drop the copies.

        Args:
            how: ``latest`` or ``mean``.
            ours: int64, shared nodes that had events on this rank, distinct.
            touched: bool (n,), those of ``nodes`` that had events on any rank.
        """
        mailbox, ranks = self._stream.mailbox, self._ranks
        nodes, mine = self.nodes[touched], self._mine[touched]
        if not len(nodes):
            mailbox.release(self.nodes[~self._mine])
            return
        here = np.isin(nodes, ours)
        times = np.full((2, ranks.size, len(nodes)), _ABSENT)
        times[0, ranks.rank, here] = mailbox.event_us[nodes[here]]
        times[1, ranks.rank, here] = mailbox.former_us[nodes[here]]
        times = ranks.largest(times, "synchronise")
        winner = times[0].argmax(axis=0)  # of equal times the first, the lowest rank
        at = np.arange(len(nodes))
        event_us, former_us = times[0, winner, at], times[1, winner, at]
        given = winner == ranks.rank if how == "latest" else here
        mail = mailbox.mail.new_zeros(len(nodes), mailbox.mail.shape[1])
        place = to_device(np.flatnonzero(given), mail.device)
        mail[place] = mailbox.rows(nodes[given]).mail
        mail = ranks.sum_rows(mail, "synchronise")
        if how == "mean":
            copies = (times[0] != _ABSENT).sum(axis=0)
            mail /= to_device(copies, mail.device).to(mail.dtype).unsqueeze(1)
        sketch, sketch_us = self._walks(nodes, touched, here)
        own = to_device(np.flatnonzero(mine), mail.device)
        mailbox.release(self.nodes[~self._mine])
        mailbox.write(
            Rows(
                nodes[mine],
                mail[own],
                event_us[mine],
                former_us[mine],
                None if sketch is None else sketch[mine],
                None if sketch_us is None else sketch_us[mine],
            )
        )
        mailbox.set_times(nodes[~mine], event_us[~mine], former_us[~mine])

    def _walks(self, nodes: Int64, touched: Bool, here: Bool) -> tuple[Float32 | None, Int64 | None]:
        """The former sketches plus the gains of all copies, as of the latest copy's time."""
        if self._before is None or self._before_us is None:
            return None, None
        before = np.zeros((len(nodes), *self._before.shape[1:]), np.float32)
        before_us = np.zeros(len(nodes), np.int64)
        known = self._known[touched]
        place = (np.cumsum(self._known) - 1)[touched][known]
        before[known], before_us[known] = self._before[place], self._before_us[place]
        now = np.zeros_like(before)
        now_us = np.full(len(nodes), np.iinfo(np.int64).min)
        rows = self._stream.mailbox.rows(nodes[here])
        now[here], now_us[here] = rows.sketch, rows.sketch_us
        latest = self._ranks.largest(now_us, "synchronise")
        base = WalkSketches.decayed(before, np.where(known, latest - before_us, 0) / 1e6)
        gained = np.zeros_like(before)
        gained[here] = WalkSketches.decayed(now[here], (latest - now_us)[here] / 1e6) - base[here]
        return base + self._ranks.sum_array(gained, "synchronise"), latest

    def _tables(self, nodes: Int64, mine: Bool) -> tuple[torch.Tensor, Float32 | None, Int64 | None]:
        """Rows of nodes, from their owners."""
        mailbox = self._stream.mailbox
        own = mailbox.rows(nodes[mine])
        if not len(nodes):
            return own.mail, own.sketch, own.sketch_us
        mail = mailbox.mail.new_zeros(len(nodes), mailbox.mail.shape[1])
        mail[to_device(np.flatnonzero(mine), mail.device)] = own.mail
        mail = self._ranks.sum_rows(mail, "synchronise")
        if own.sketch is None or own.sketch_us is None:
            return mail, None, None
        sketch = np.zeros((len(nodes), *own.sketch.shape[1:]), np.float32)
        sketch_us = np.zeros(len(nodes), np.int64)
        sketch[mine], sketch_us[mine] = own.sketch, own.sketch_us
        return (
            mail,
            self._ranks.sum_array(sketch, "synchronise"),
            self._ranks.sum_array(sketch_us, "synchronise"),
        )
