"""The ranks of the trainer and their collectives, with bytes and seconds by purpose.

With one rank nothing is sent and torch.distributed is never touched. Every method is a collective: all ranks
call it, in the same order. Tensors on the host travel by gloo, tensors on a GPU by NCCL. So the host never waits for the
GPU for numbers of its own decisions.
"""

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from freshet_graph.schemas.errors import FreshetError
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.wire.exchange import GradientBuffer, Handle, begin_exchange, packed, unpacked
from freshet_graph.trainer.wire.joining import TIMEOUT_S, Device, join
from freshet_graph.trainer.wire.link import Link, Operation, PendingWork, ProcessLink
from freshet_graph.trainer.wire.traffic import Flight, Traffic

T = TypeVar("T", bound=np.generic)
R = TypeVar("R")
CONTROL = "control"
"""The purpose of numbers for decisions of the host."""
MOST_AHEAD = 1 << 13
"""Most numbers for which a block has room beside its size: shorter messages cost about the same whatever their length."""
MOST_TO_ONE = 1 << 16
"""The same in an exchange with one receiver."""


class Ranks:
    """This process among all ranks, or among those of a group.

    Args:
        rank: This process, 0 … size − 1.
        size: Number of ranks.
        device: Of weights and memory.
        link: Between the ranks; None: the processes of torch.distributed.
        traffic: Counts bytes and seconds; None: a count of its own.

    Attributes:
        traffic: Bytes and seconds of this rank, by purpose.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        device: str | torch.device = "cpu",
        *,
        link: Link | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.device = torch.device(device)
        self.traffic = Traffic() if traffic is None else traffic
        self._link = ProcessLink(rank, size) if link is None else link
        self._gradients: GradientBuffer | None = None
        self._averaging = False
        self._room: dict[str, int] = {}  # of blocks, by purpose; equal on all ranks

    @classmethod
    def from_environment(
        cls, device: Device, timeout_s: float = TIMEOUT_S, *, threads: int | None = None
    ) -> "Ranks":
        """Join the ranks that torchrun started; alone without torchrun.

        Args:
            device: ``auto``: CUDA if every rank of this machine has a device of its own, else the CPU.
            timeout_s: Seconds after which a peer counts as dead.
            threads: Of this rank's products on the CPU; None: ``OMP_NUM_THREADS``, or its share of the cores.

        Raises:
            Failure: ``cuda`` is set, and there are fewer devices than ranks on this machine.
        """
        link, place = join(device, timeout_s, threads)
        return cls(device=place) if link is None else cls(link.rank, link.size, place, link=link)

    def close(self) -> None:
        """Leave the group and wait for its threads.

        A gloo thread may still be releasing the tensors of the last collective, for which it needs the GIL. If the
        interpreter ended meanwhile, the process would abort. The threads live as long as the group is referenced.
        """
        if self.size > 1:
            dist.destroy_process_group()
            gc.collect()

    def split(self, rows: int, columns: int) -> tuple["Ranks", "Ranks"]:
        """This rank's row and its column in a mesh of all ranks, row after row.

        Traffic in either is counted here, too.

        Args:
            rows: Of the mesh.
            columns: Ranks in a row; rows · columns is the number of ranks.
        """
        if rows * columns != self.size:
            raise ValueError(f"{rows} × {columns} ranks are not {self.size}")
        mesh = np.arange(self.size).reshape(rows, columns)
        return self._within(mesh.tolist()), self._within(mesh.T.tolist())

    def any(self, *flags: bool) -> list[bool]:
        """For each flag: whether it holds on any rank (one MAX all-reduce)."""
        return [value > 0 for value in self.maximum([int(flag) for flag in flags])]

    def maximum(self, values: Sequence[int], purpose: str = CONTROL) -> list[int]:
        """Element-wise maximum over ranks."""
        return [int(value) for value in self._reduce(values, torch.int64, "max", purpose)]

    def total(self, values: Sequence[float]) -> list[float]:
        """Element-wise sum over ranks."""
        return [float(value) for value in self._reduce(values, torch.float64, "sum", CONTROL)]

    def from_first(self, value: int, purpose: str = CONTROL) -> int:
        """Rank 0's value, on every rank."""
        return int(self._from_first(torch.tensor([value], dtype=torch.int64), purpose).item())

    def text_from_first(self, text: str) -> str:
        """Rank 0's text, on every rank."""
        return self.bytes_from_first(text.encode(), CONTROL).decode()

    def bytes_from_first(self, content: bytes, purpose: str) -> bytes:
        """Rank 0's bytes, on every rank."""
        length = self.from_first(len(content))
        if self.size == 1 or not length:
            return content if self.rank == 0 else b""
        box = torch.frombuffer(bytearray(content if self.rank == 0 else length), dtype=torch.uint8)
        return self._from_first(box, purpose).numpy().tobytes()

    def unlike_first(self, text: str) -> str:
        """Numbers of the ranks whose text is not that of rank 0, such as ``1, 3``; on every rank."""
        is_unlike = self.gather_numbers([text != self.text_from_first(text)])[:, 0]
        return ", ".join(str(rank) for rank in np.flatnonzero(is_unlike))

    def on_first(self, work: Callable[[], R]) -> R | None:
        """Do something on rank 0 alone; None elsewhere. If it fails there, it fails everywhere.

        Raises:
            Failure: ``work`` raised an error of Freshet on rank 0; with its sentence.
        """
        refused, done = "", None
        if self.rank == 0:
            try:
                done = work()
            except FreshetError as error:
                refused = str(error)
        refused = self.text_from_first(refused)
        if refused:
            raise Failure(refused)
        return done

    def gather_numbers(self, numbers: Sequence[int]) -> Int64:
        """Every rank's numbers, as many on each, on every rank: int64 (size, n)."""
        same = [len(numbers)] * self.size
        every = self.exchange_array(np.tile(np.array(numbers, np.int64), self.size), same, same, CONTROL)
        return every.reshape(self.size, len(numbers))

    def exchange_blocks(
        self, values: Int64, sent: Sequence[int], purpose: str, *, to: int | None = None
    ) -> tuple[Int64, list[int]]:
        """Send blocks of numbers whose sizes only their sender knows: mostly one collective.

        A block travels with its size and room for a quarter more numbers than the largest block of the last exchange had.
        If the largest block of all ranks is longer, all send the rest in a second collective.

        Args:
            values: int64 (Σ sent,), rank 0's first.
            sent: Numbers for each rank.
            purpose: Label of the counted bytes. Exchanges of one purpose should be of similar sizes.
            to: The only rank that is sent numbers; None: any rank is.

        Returns:
            int64 (Σ received,), rank 0's first, and how many each rank sent.
        """
        if self.size == 1:
            return values, list(sent)
        room = self._room.get(purpose, 0)
        rooms = [room if to is None or rank == to else 0 for rank in range(self.size)]
        others = [0 if rank == self.rank else count for rank, count in enumerate(sent)]
        blocks = np.split(values, np.cumsum(sent)[:-1])
        boxes = []
        for rank, block in enumerate(blocks):
            box = np.zeros(2 + rooms[rank] if rank != self.rank else 0, np.int64)
            box[:2] = (sent[rank], max(others))[: len(box)]
            ahead = block[: max(0, len(box) - 2)]
            box[2 : 2 + len(ahead)] = ahead
            boxes.append(box)
        here = 2 + rooms[self.rank]
        lengths = [0 if rank == self.rank else here for rank in range(self.size)]
        arrived = self.exchange_array(np.concatenate(boxes), [len(box) for box in boxes], lengths, purpose)
        headers = arrived.reshape(-1, here)
        received = [*headers[: self.rank, 0].tolist(), sent[self.rank], *headers[self.rank :, 0].tolist()]
        most = max(*others, *headers[:, 1].tolist())
        limit = MOST_AHEAD if to is None else MOST_TO_ONE
        self._room[purpose] = min(limit, max(most + most // 4, room * 7 // 8))
        arrived_blocks = [*headers[: self.rank, 2:], blocks[self.rank], *headers[self.rank :, 2:]]
        arrived_blocks = [block[:count] for block, count in zip(arrived_blocks, received, strict=True)]
        if most > room:
            left = [
                block[box.size - 2 :] if box.size else block[:0]
                for block, box in zip(blocks, boxes, strict=True)
            ]
            missing = [count - len(block) for block, count in zip(arrived_blocks, received, strict=True)]
            rest = self.exchange_array(np.concatenate(left), [len(block) for block in left], missing, purpose)
            rests = np.split(rest, np.cumsum(missing)[:-1])
            arrived_blocks = [part for pair in zip(arrived_blocks, rests, strict=True) for part in pair]
        return np.concatenate(arrived_blocks), received

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int], purpose: str) -> Tensor:
        """Send blocks of rows to every rank and receive theirs; the gradient travels back the same way.

        Args:
            rows: (Σ sent, …), rank 0's rows first; on all ranks with a gradient or on none.
            sent: Rows for each rank.
            received: Rows from each rank.
            purpose: Label of the counted bytes; that of the gradient is ``<purpose>_gradients``.

        Returns:
            (Σ received, …), rank 0's rows first.
        """
        return self.begin_exchange(rows, sent, received, purpose).wait()

    def begin_exchange(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], purpose: str
    ) -> Handle[Tensor]:
        """As ``exchange``, but without waiting: computation before the handle's ``wait`` hides the transfer.

        In the backward pass the gradient sets out where the rows were waited for and is waited for where they set out.
        ``rows`` must not change until then.
        """
        if self.size == 1:
            return Handle(lambda: rows)
        return begin_exchange(rows, sent, received, purpose, self._launch)

    def exchange_array(
        self, rows: NDArray[T], sent: Sequence[int], received: Sequence[int], purpose: str
    ) -> NDArray[T]:
        """As ``exchange``, from host to host."""
        if self.size == 1:
            return rows
        return self.exchange(torch.from_numpy(rows), sent, received, purpose).numpy()

    def exchange_tables(
        self, tables: Sequence[Tensor], sent: Sequence[int], received: Sequence[int], purpose: str
    ) -> list[Tensor]:
        """As ``exchange`` of several tables with rows for the same ranks, without gradients: one collective per device."""
        if self.size == 1:
            return list(tables)
        arrived: dict[int, Tensor] = {}
        for device in dict.fromkeys(table.device for table in tables):
            here = [number for number, table in enumerate(tables) if table.device == device]
            alike = [tables[number] for number in here]
            rows = self.exchange(packed(alike), sent, received, purpose)
            arrived.update(zip(here, unpacked(rows, alike), strict=True))
        return [arrived[number] for number in range(len(tables))]

    def gather_rows(self, rows: Tensor, sizes: Sequence[int], purpose: str) -> Tensor:
        """Every rank's rows on every rank; gradients of all copies return to the rows' rank, and are summed.

        Args:
            rows: (sizes[rank], …); on all ranks with a gradient or on none.
            sizes: Rows of each rank, known to all.
            purpose: Label of the counted bytes; that of the gradient is ``<purpose>_gradients``.

        Returns:
            (Σ sizes, …), rank 0's rows first.
        """
        if self.size == 1:
            return rows
        copies = rows.expand(self.size, *rows.shape).reshape(-1, *rows.shape[1:])
        return self.exchange(copies, [len(rows)] * self.size, sizes, purpose)

    def sum_gradients(self, parameters: Iterable[nn.Parameter], loss: Tensor | None = None) -> Tensor | None:
        """Replace every gradient by its sum over ranks, in one all-reduce, in which the loss travels, too.

        A gradient that some ranks miss counts as zero there; one that all miss stays missing, as on one rank. The sums
        are views of one buffer, which the next call for the same parameters overwrites. On GPUs, which gradients exist is
        exchanged beside it by the hosts.

        Args:
            parameters: With gradients of this rank.
            loss: Of this rank, a scalar; None: it has none.

        Returns:
            The sum of the losses; on one rank ``loss``.
        """
        if self.size == 1:
            return loss
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        if self._gradients is None or not self._gradients.serves(wanted):
            self._gradients = GradientBuffer(wanted)
        buffer, has_gradient = self._gradients, [parameter.grad is not None for parameter in wanted]
        if buffer.has_flags:
            self.sum_rows(buffer.filled_with(loss, has_gradient), "gradients")
            return buffer.hand_out(buffer.has_gradient())
        any_gradient = self._all_reduce(torch.tensor(has_gradient, dtype=torch.int64), "max", CONTROL)
        self.sum_rows(buffer.filled_with(loss, has_gradient), "gradients")
        return buffer.hand_out(any_gradient.wait().tolist())

    @torch.no_grad()
    def sum_in_order(
        self, blocks: Mapping[int, Sequence[Tensor]], like: Sequence[Tensor], purpose: str
    ) -> list[Tensor]:
        """Sum numbered contributions in the order of their numbers: equal to the bit for any distribution over ranks.

        Every rank adds up a share of the elements: it gets that share of all contributions, adds them one after the
        other, and sends the sums to all. With c contributions here, C in all, of n elements, a rank of P sends about
        (c + 1) · n · (P − 1) / P elements and holds C · n / P; an all-reduce, whose sums depend on P, sends
        2 · n · (P − 1) / P.

        Args:
            blocks: This rank's contributions by number, of the shapes of ``like``; it may have none.
            like: Tensors of the sums' shapes, type and device.
            purpose: Label of the counted bytes.

        Returns:
            The sums, views of one buffer; zeros where no rank has a contribution.

        Raises:
            ValueError: A number is on two ranks (raised on all of them).
        """
        own_numbers = sorted(blocks)
        numbers, counts = self.gather_blocks(np.array(own_numbers, np.int64), CONTROL)
        if len(np.unique(numbers)) < len(numbers):
            raise ValueError(f"a number is on two ranks: {numbers.tolist()}")
        lengths = [tensor.numel() for tensor in like]
        share = -(-sum(lengths) // self.size)
        table = like[0].new_zeros(len(own_numbers), self.size * share)
        for row, number in zip(table, own_numbers, strict=True):
            torch.cat([tensor.flatten() for tensor in blocks[number]], out=row[: sum(lengths)])
        apart = table.view(len(own_numbers), self.size, share).transpose(0, 1).reshape(-1, share)
        arrived = self.exchange(apart, [len(own_numbers)] * self.size, counts, purpose)
        order = np.argsort(numbers).tolist()
        total = arrived[order[0]].clone() if order else table.new_zeros(share)
        for place in order[1:]:
            total += arrived[place]
        summed = self.gather_rows(total.unsqueeze(0), [1] * self.size, purpose).flatten()[: sum(lengths)]
        return [part.view_as(tensor) for part, tensor in zip(torch.split(summed, lengths), like, strict=True)]

    def sum_rows(self, rows: Tensor, purpose: str) -> Tensor:
        """Element-wise sum over ranks of a table that has one shape on all of them; not differentiable.

        Args:
            rows: Replaced by the sum.
            purpose: Label of the counted bytes.
        """
        return self._all_reduce(rows, "sum", purpose).wait() if self.size > 1 else rows

    def average(self, tables: Sequence[Tensor], weight: float = 1.0) -> None:
        """Replace tensors, of one shape on all ranks, by their means over ranks, in one all-reduce.

        Args:
            tables: Of one type.
            weight: Of this rank's, in a weighted mean.
        """
        if self.size > 1:
            for table, mean in zip(tables, self.begin_average(tables, weight).wait(), strict=True):
                table.copy_(mean)

    def begin_average(self, tables: Sequence[Tensor], weight: float = 1.0) -> Handle[list[Tensor]]:
        """As ``average``, without waiting: the handle's ``wait`` returns the means of the tables as they are now.

        Raises:
            RuntimeError: The previous average was not waited for.
        """
        if self._averaging:
            raise RuntimeError("an average is under way: wait for it before the next one begins")
        if self.size == 1 or not tables:
            means = [table.detach().clone() for table in tables]
            return Handle(lambda: means)
        flat_tables = [table.detach().flatten() for table in tables]
        flat = torch.cat([*flat_tables, flat_tables[0].new_ones(1)]).mul_(weight)
        flight = self._all_reduce(flat, "sum", "averages")
        self._averaging = True

        def arrive() -> list[Tensor]:
            self._averaging = False
            *sums, weights = torch.split(flight.wait(), [*(len(part) for part in flat_tables), 1])
            return [(part / weights).view_as(table) for part, table in zip(sums, tables, strict=True)]

        return Handle(arrive)

    def sum_array(self, rows: NDArray[T], purpose: str) -> NDArray[T]:
        """As ``sum_rows``, from host to host."""
        return rows if self.size == 1 else self.sum_rows(torch.from_numpy(rows), purpose).numpy()

    def largest(self, values: NDArray[np.int64], purpose: str) -> NDArray[np.int64]:
        """Element-wise maximum over ranks of arrays of one shape."""
        if self.size == 1:
            return values
        return self._all_reduce(torch.from_numpy(values.copy()), "max", purpose).wait().numpy()

    def union(self, values: Int64) -> Int64:
        """Distinct values of all ranks, ascending."""
        return np.unique(self.gather_blocks(values, "ids")[0])

    def gather_blocks(self, values: Int64, purpose: str) -> tuple[Int64, list[int]]:
        """All ranks' values, rank 0's first, and how many each has; mostly one collective."""
        return self.exchange_blocks(np.tile(values, self.size), [len(values)] * self.size, purpose)

    def _reduce(
        self, values: Sequence[float], dtype: torch.dtype, operation: Operation, purpose: str
    ) -> list[Any]:
        if self.size == 1:
            return list(values)
        return self._all_reduce(torch.tensor(list(values), dtype=dtype), operation, purpose).wait().tolist()

    def _from_first(self, box: Tensor, purpose: str) -> Tensor:
        if self.size == 1:
            return box
        sent_bytes = (self.size - 1) * box.nbytes if self.rank == 0 else 0
        return self._begin(purpose, sent_bytes, lambda: self._link.broadcast(box), box).wait()

    def _all_reduce(self, box: Tensor, operation: Operation, purpose: str) -> Flight:
        # a ring all-reduce sends every element about twice; between two ranks that is once, as in an exchange
        sent_bytes = 2 * (self.size - 1) * box.nbytes // self.size
        return self._begin(purpose, sent_bytes, lambda: self._link.all_reduce(box, operation), box)

    def _launch(self, rows: Tensor, sent: Sequence[int], received: Sequence[int], purpose: str) -> Flight:
        rows = rows.contiguous()
        out = rows.new_empty((sum(received), *rows.shape[1:]))
        to_others = sum(sent) - sent[self.rank]
        sent_bytes = rows.nbytes // len(rows) * to_others if to_others else 0
        return self._begin(
            purpose, sent_bytes, lambda: self._link.all_to_all(out, rows, received, sent), out, rows
        )

    def _begin(
        self,
        purpose: str,
        sent_bytes: int,
        begin: Callable[[], PendingWork],
        out: Tensor,
        sent_rows: Tensor | None = None,
    ) -> Flight:
        return Flight(self.traffic, self._link, purpose, sent_bytes, begin, out, sent_rows)

    def _within(self, groups: list[list[int]]) -> "Ranks":
        if len(groups[0]) == 1:
            return Ranks(device=self.device, traffic=self.traffic)
        link = self._link.within(groups)
        return Ranks(link.rank, link.size, self.device, link=link, traffic=self.traffic)
