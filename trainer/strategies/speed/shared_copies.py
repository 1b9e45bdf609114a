"""Copies of shared nodes on every rank while it learns, and their merge into one memory (SPEED section II-C)."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from freshet_graph.stream.arrays.kinds import Bool, Float32, Int32, Int64
from freshet_graph.trainer.data.walks import WalkSketches
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.events.memory_stream import NEVER, MailboxRows
from freshet_graph.trainer.strategies.speed.sharded_stream import ShardedStream

Synchronise = Literal["latest", "mean"]

_ABSENT = NEVER - 1


class SharedCopies:
    """The shared nodes' content at the beginning of separate learning, on every rank; made and merged by collectives.

    ``latest``: a node gets the mail and times of the copy with the latest event, for equal times of the lowest rank.
    ``mean``: the mean of the mails of all copies that had events, with the latest one's times. Walks add up: a sketch is a
    sum over events, and every event belongs to one rank, so the gains of all copies are summed.

    Args:
        stream: This rank's, with rows of its own nodes.
        shared: int64 (n,), shared nodes, ascending.
        owners: int32 (n,), the rank of each.
        ranks: All ranks.
    """

    def __init__(self, stream: ShardedStream, shared: Int64, owners: Int32, ranks: Ranks) -> None:
        self._stream, self._ranks = stream, ranks
        self.nodes, self._mine = shared, owners == ranks.rank
        mailbox = stream.mailbox
        known = mailbox.event_us[shared] != NEVER
        lent = shared[known & ~self._mine]
        mail, sketch, sketch_us = self._tables(shared[known], owners[known])
        foreign = ~self._mine[known]
        self._before, self._before_us = sketch, sketch_us
        self._known = known
        mailbox.lend(
            MailboxRows(
                lent,
                mail[to_device(np.flatnonzero(foreign), mail.device)],
                mailbox.event_us[lent],
                mailbox.former_us[lent],
                None if sketch is None else sketch[foreign],
                None if sketch_us is None else sketch_us[foreign],
            )
        )

    def merge(self, how: Synchronise, ours: Int64, touched: Bool, others: Int64, others_mine: Bool) -> None:
        """Merge all copies into one memory, send it to the owners, and drop the copies.

        Args:
            how: ``latest`` or ``mean``.
            ours: int64, shared nodes that had events on this rank, distinct.
            touched: bool (n,), those of ``nodes`` that had events on any rank.
            others: int64 (m,), nodes without copies that had events; all ranks get the times of their latest ones.
            others_mine: bool (m,), those that this rank owns.
        """
        mailbox, ranks = self._stream.mailbox, self._ranks
        nodes, mine = self.nodes[touched], self._mine[touched]
        here = np.isin(nodes, ours)
        rows = mailbox.rows(nodes[here])
        times = np.full((2, ranks.size, len(nodes)), _ABSENT)
        times[:, ranks.rank, here] = rows.event_us, rows.former_us
        other_times = np.where(
            others_mine, np.stack([mailbox.event_us[others], mailbox.former_us[others]]), _ABSENT
        )
        walked_us = np.full(len(nodes), _ABSENT)
        if rows.sketch_us is not None:
            walked_us[here] = rows.sketch_us
        times, other_times, walked_us = self._largest(times, other_times, walked_us)
        mailbox.set_times(others[~others_mine], other_times[0, ~others_mine], other_times[1, ~others_mine])
        if not len(nodes):
            mailbox.release(self.nodes[~self._mine])
            return
        winner = times[0].argmax(axis=0)  # of equal times the first, the lowest rank
        number = np.arange(len(nodes))
        event_us, former_us = times[0, winner, number], times[1, winner, number]
        given = winner == ranks.rank if how == "latest" else here
        mail = mailbox.mail.new_zeros(len(nodes), mailbox.mail.shape[1])
        place = to_device(np.flatnonzero(given), mail.device)
        mail[place] = rows.mail[to_device(np.flatnonzero(given[here]), mail.device)]
        mail = ranks.sum_rows(mail, "synchronise")
        if how == "mean":
            copies = (times[0] != _ABSENT).sum(axis=0)
            mail /= to_device(copies, mail.device).to(mail.dtype).unsqueeze(1)
        sketch, sketch_us = self._walks(rows, touched, here, walked_us)
        own_place = to_device(np.flatnonzero(mine), mail.device)
        mailbox.release(self.nodes[~self._mine])
        mailbox.write(
            MailboxRows(
                nodes[mine],
                mail[own_place],
                event_us[mine],
                former_us[mine],
                None if sketch is None else sketch[mine],
                None if sketch_us is None else sketch_us[mine],
            )
        )
        mailbox.set_times(nodes[~mine], event_us[~mine], former_us[~mine])

    def _walks(
        self, rows: MailboxRows, touched: Bool, here: Bool, latest_us: Int64
    ) -> tuple[Float32 | None, Int64 | None]:
        """The former sketches plus the gains of all copies, as of the latest copy's time.

        Args:
            rows: The copies on this rank that had events.
            touched: bool (n,), see ``merge``.
            here: bool (touched,), those that ``rows`` has.
            latest_us: int64 (touched,), the latest time of a node's walks on any rank.
        """
        if self._before is None or self._before_us is None or rows.sketch is None or rows.sketch_us is None:
            return None, None
        before = np.zeros((len(here), *self._before.shape[1:]), np.float32)
        before_us = np.zeros(len(here), np.int64)
        known = self._known[touched]
        place = (np.cumsum(self._known) - 1)[touched][known]
        before[known], before_us[known] = self._before[place], self._before_us[place]
        base = WalkSketches.decayed(before, np.where(known, latest_us - before_us, 0) / 1e6)
        gained = np.zeros_like(before)
        gained[here] = (
            WalkSketches.decayed(rows.sketch, (latest_us[here] - rows.sketch_us) / 1e6) - base[here]
        )
        return base + self._ranks.sum_array(gained, "synchronise"), latest_us

    def _largest(self, *arrays: Int64) -> list[Int64]:
        """Each array's element-wise maximum over ranks, in one collective."""
        flat = np.concatenate([array.ravel() for array in arrays])
        if len(flat):  # of one length on all ranks
            flat = self._ranks.largest(flat, "synchronise")
        parts = np.split(flat, np.cumsum([array.size for array in arrays])[:-1])
        return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]

    def _tables(self, nodes: Int64, owners: Int32) -> tuple[Tensor, Float32 | None, Int64 | None]:
        """Rows of nodes, from their owners."""
        mailbox, ranks = self._stream.mailbox, self._ranks
        local_rows = mailbox.rows(nodes[owners == ranks.rank])
        if not len(nodes):
            return local_rows.mail, local_rows.sketch, local_rows.sketch_us
        sizes = np.bincount(owners, minlength=ranks.size).tolist()
        tables = [local_rows.mail]
        if local_rows.sketch is not None and local_rows.sketch_us is not None:
            tables += [torch.from_numpy(local_rows.sketch), torch.from_numpy(local_rows.sketch_us)]
        copies = [torch.cat([table] * ranks.size) for table in tables]
        arrived = ranks.exchange_tables(copies, [sizes[ranks.rank]] * ranks.size, sizes, "synchronise")
        order = np.argsort(np.argsort(owners, kind="stable"))
        mail, *walks = (rows[to_device(order, rows.device)] for rows in arrived)
        sketch, sketch_us = [table_rows.numpy() for table_rows in walks] or (None, None)
        return mail, sketch, sketch_us
