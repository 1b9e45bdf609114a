"""The trainer's processes: who they are and the few collectives they use, every byte counted.

With one rank nothing is sent and torch.distributed is never touched. Every method is a collective: all ranks
call it, in the same order. A tensor travels where it lives: what is on the host by gloo, what is on a GPU by NCCL. So
numbers that the host decides by never make it wait for the GPU.
"""

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # its defaults keep the group that exists when it is first imported: none yet
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, TCPStore

from stream.service.failure import Failure
from trainer.lost_peer import peers_may_be_lost

Device = Literal["auto", "cpu", "cuda"]
T = TypeVar("T", bound=np.generic)
TIMEOUT_S = 600.0
"""A peer that doesn't answer for so long is taken for dead."""


class Ranks:
    """This process among all ranks.

    Attributes:
        rank: This process, 0 … size − 1.
        size: How many there are.
        device: Where weights and memory live.
        sent_bytes: Payload bytes this rank sent to others, by purpose.
        wait_s: Seconds in collectives: until the slowest rank came, and for the bytes to arrive.
    """

    def __init__(self, rank: int = 0, size: int = 1, device: str | torch.device = "cpu") -> None:
        self.rank = rank
        self.size = size
        self.device = torch.device(device)
        self.sent_bytes: Counter[str] = Counter()
        self.wait_s = 0.0

    @classmethod
    def from_environment(cls, device: Device, timeout_s: float = TIMEOUT_S) -> "Ranks":
        """Join the ranks that torchrun started; alone without torchrun.

        Each attempt has its own key space: after a killed rank torchrun starts all again on the same store, and
        keys of the former attempt would let the new one meet dead peers.

        Args:
            device: ``auto``: CUDA where every rank of this machine has a device of its own, else the CPU.
            timeout_s: After which a peer is taken for dead, seconds.

        Raises:
            Failure: ``cuda`` is asked for, and there are fewer devices than ranks on this machine.
        """
        place = _place(device)
        if place.type == "cuda":
            torch.cuda.set_device(place)
        if "RANK" not in os.environ:
            if "OMP_NUM_THREADS" not in os.environ:  # else torch has as many threads as was said
                _limit_threads(1)
            return cls(device=place)
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        _limit_threads(int(os.environ.get("LOCAL_WORLD_SIZE", size)))
        timeout = timedelta(seconds=timeout_s)
        agent_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        with peers_may_be_lost(rank):
            store = TCPStore(
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                world_size=None,
                is_master=rank == 0 and not agent_store,
                timeout=timeout,
            )
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo",
                store=PrefixStore(f"attempt{attempt}", store),
                rank=rank,
                world_size=size,
                timeout=timeout,
            )
        return cls(rank, size, place)

    def close(self) -> None:
        """Leave the group and wait for its threads.

        A gloo thread may still be giving up the tensors of the last collective, for which it needs the GIL; were
        the interpreter ending meanwhile, the process would abort. The threads live as long as anything holds the
        group.
        """
        if self.size > 1:
            dist.destroy_process_group()
            gc.collect()

    def meet(self, collective: Callable[..., Any], *arguments: Any, **more: Any) -> None:
        """Take part in a collective of torch.distributed.

        Raises:
            PeerLost: Another rank is gone, or does not answer.
        """
        began = time.perf_counter()
        with peers_may_be_lost(self.rank):
            collective(*arguments, **more)
        self.wait_s += time.perf_counter() - began

    def any(self, *flags: bool) -> list[bool]:
        """For each flag: whether it holds on any rank (one MAX all-reduce)."""
        return [value > 0 for value in self.maximum([int(flag) for flag in flags])]

    def maximum(self, values: Sequence[int]) -> list[int]:
        """Element-wise maximum over ranks."""
        return [int(value) for value in self._reduce(values, torch.int64, dist.ReduceOp.MAX)]

    def total(self, values: Sequence[float]) -> list[float]:
        """Element-wise sum over ranks."""
        return [float(value) for value in self._reduce(values, torch.float64, dist.ReduceOp.SUM)]

    def from_first(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        box = torch.tensor([value], dtype=torch.int64)
        self.meet(dist.broadcast, box, src=0)
        return int(box.item())

    def text_from_first(self, text: str) -> str:
        """Rank 0's text, on every rank."""
        if self.size == 1:
            return text
        encoded = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        length = self.from_first(len(encoded))
        box = encoded if self.rank == 0 else torch.empty(length, dtype=torch.uint8)
        self.meet(dist.broadcast, box, src=0)
        return bytes(box.numpy()).decode()

    def exchange_sizes(self, sizes: Sequence[int]) -> list[int]:
        """Tell each rank how many rows it will get from this one; returns how many each of them will send."""
        if self.size == 1:
            return list(sizes)
        sent = torch.tensor(list(sizes), dtype=torch.int64)
        received = torch.empty_like(sent)
        self.meet(dist.all_to_all_single, received, sent)
        return received.tolist()

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int], purpose: str) -> Tensor:
        """Send blocks of rows to every rank and receive theirs; the gradient travels back the same way.

        Args:
            rows: (Σ sent, …), rank 0's rows first.
            sent: Rows for each rank.
            received: Rows from each rank, as ``exchange_sizes`` returned.
            purpose: Under which the bytes are counted; its gradient's as ``<purpose>_gradients``.

        Returns:
            (Σ received, …), rank 0's rows first.
        """
        if self.size == 1:
            return rows
        exchanged: Tensor = _Exchange.apply(rows, list(sent), list(received), self, purpose)  # type: ignore[no-untyped-call]  # torch's apply is untyped
        return exchanged

    def exchange_array(
        self, rows: NDArray[T], sent: Sequence[int], received: Sequence[int], purpose: str
    ) -> NDArray[T]:
        """As ``exchange``, from host to host."""
        if self.size == 1:
            return rows
        return self.exchange(torch.from_numpy(rows), sent, received, purpose).numpy()

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over ranks, in one all-reduce; a missing one counts as zero."""
        if self.size == 1:
            return
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in wanted])
        self.meet(dist.all_reduce, flat)
        # a ring all-reduce sends every element about twice
        self.sent_bytes["gradients"] += 2 * (self.size - 1) * flat.nbytes // self.size
        for parameter, gradient in zip(wanted, torch.split(flat, [p.numel() for p in wanted]), strict=True):
            parameter.grad = gradient.view_as(parameter).clone()

    def sum_rows(self, rows: Tensor, purpose: str) -> Tensor:
        """Element-wise sum over ranks of a table that has one shape on all of them; not differentiable.

        Args:
            rows: Replaced by the sum.
            purpose: Under which the bytes are counted.
        """
        if self.size > 1:
            self.meet(dist.all_reduce, rows)
            self.sent_bytes[purpose] += 2 * (self.size - 1) * rows.nbytes // self.size
        return rows

    def average(self, tables: Sequence[Tensor]) -> None:
        """Replace tensors, of one shape on all ranks, by their means over ranks, in one all-reduce."""
        if self.size == 1 or not tables:
            return
        flat = self.sum_rows(torch.cat([table.flatten() for table in tables]), "averages") / self.size
        for table, mean in zip(tables, torch.split(flat, [table.numel() for table in tables]), strict=True):
            table.copy_(mean.view_as(table))

    def sum_array(self, rows: NDArray[T], purpose: str) -> NDArray[T]:
        """As ``sum_rows``, from host to host."""
        return rows if self.size == 1 else self.sum_rows(torch.from_numpy(rows), purpose).numpy()

    def largest(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Element-wise maximum over ranks of arrays of one shape."""
        if self.size == 1:
            return values
        box = torch.from_numpy(values.copy())
        self.meet(dist.all_reduce, box, op=dist.ReduceOp.MAX)
        return box.numpy()

    def union(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Distinct values of all ranks, ascending."""
        if self.size == 1:
            return np.unique(values)
        sent = [len(values)] * self.size
        rows = np.tile(values, self.size)
        return np.unique(self.exchange_array(rows, sent, self.exchange_sizes(sent), "ids"))

    def _reduce(self, values: Sequence[float], dtype: torch.dtype, op: Any) -> list[Any]:
        if self.size == 1:
            return list(values)
        box = torch.tensor(list(values), dtype=dtype)
        self.meet(dist.all_reduce, box, op=op)
        return box.tolist()


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: list[int], received: list[int], ranks: Ranks, purpose: str
    ) -> Tensor:
        ctx.plan = (sent, received, ranks, purpose)
        return _all_to_all(rows, sent, received, ranks, purpose)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        sent, received, ranks, purpose = ctx.plan
        return (
            _all_to_all(gradients[0], received, sent, ranks, f"{purpose}_gradients"),
            None,
            None,
            None,
            None,
        )


def _all_to_all(rows: Tensor, sent: list[int], received: list[int], ranks: Ranks, purpose: str) -> Tensor:
    out = rows.new_empty((sum(received), *rows.shape[1:]))
    ranks.meet(
        dist.all_to_all_single, out, rows.contiguous(), output_split_sizes=received, input_split_sizes=sent
    )
    row_bytes = rows.element_size() * rows[:1].numel() if len(rows) else 0
    ranks.sent_bytes[purpose] += row_bytes * (sum(sent) - sent[ranks.rank])
    return out


def _place(device: Device) -> torch.device:
    """This rank's device: NCCL takes no two ranks on one, so each has its own, or all of a machine have none."""
    found = 0 if device == "cpu" else torch.cuda.device_count()
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
    if device == "cuda" and not found:
        raise Failure("key device: cuda is asked for, but torch finds no CUDA device here. Say auto or cpu.")
    if device == "cuda" and local_ranks > found:
        raise Failure(
            f"key device: cuda is asked for, but {local_ranks} ranks share {found} CUDA device(s) here. Start at most "
            f"{found} on this machine, or say cpu."
        )
    if not found or local_ranks > found:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def _limit_threads(local_ranks: int) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, cores // max(1, local_ranks)))
