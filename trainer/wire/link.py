"""The link between ranks: three asynchronous collectives, and a clock."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from freshet_graph.trainer.lost_peer import PeerLostError

Operation = Literal["sum", "max"]

_OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


@contextmanager
def peers_may_be_lost(rank: int, errors: type[RuntimeError] = RuntimeError) -> Iterator[None]:
    """Raise errors that other ranks cause as ``PeerLostError``; all others are defects of this program.

    gloo has no error types: it raises plain RuntimeErrors. So a body that catches these does nothing but meet other ranks.

    Args:
        rank: This one.
        errors: The errors that another rank causes in the body.

    Raises:
        PeerLostError: The body failed because of another rank.
    """
    try:
        yield
    except errors as error:
        raise PeerLostError(f"rank {rank} lost another rank: {error}") from error


class PendingWork(Protocol):
    """A collective that has begun."""

    def wait(self) -> Any:
        """Return when its result is there; on a GPU, when all later work of the host sees the result."""
        ...


class Link(Protocol):
    """The link of this rank to the others.

    All ranks begin the same collectives in the same order. Tensors must not change until the collective was waited for.

    Attributes:
        rank: This rank, 0 … size − 1.
        size: Number of ranks.
    """

    rank: int
    size: int

    def all_reduce(self, box: Tensor, operation: Operation) -> PendingWork:
        """Replace a tensor of one shape on all ranks by its element-wise sum or maximum."""
        ...

    def broadcast(self, box: Tensor) -> PendingWork:
        """Replace a tensor by rank 0's."""
        ...

    def all_to_all(
        self, out: Tensor, rows: Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> PendingWork:
        """Send blocks of rows to every rank, and fill ``out`` with theirs, rank 0's first."""
        ...

    def within(self, groups: Sequence[Sequence[int]]) -> "Link":
        """The link within this rank's group; ``groups``, the same on all ranks, have every rank once."""
        ...

    def now(self) -> float:
        """Seconds on the clock that measures waiting."""
        ...


class ProcessLink(Link):
    """A group of processes, by torch.distributed.

    Args:
        rank: This one, in the group.
        size: Of the group.
        group: None: all processes.
        timeout_s: Seconds after which a peer counts as dead; None: the library's default.
    """

    def __init__(
        self, rank: int, size: int, group: dist.ProcessGroup | None = None, timeout_s: float | None = None
    ) -> None:
        self.rank, self.size = rank, size
        self._group, self._timeout_s = group, timeout_s

    @override
    def all_reduce(self, box: Tensor, operation: Operation) -> PendingWork:
        # Two ranks on hosts exchange their tensors, and each reduces both: as many bytes in one step as gloo's ring sends in
        # two, and a step waits until the system runs another thread.
        if self.size > 2 or box.device.type != "cpu" or not box.is_contiguous():
            return self._begin(dist.all_reduce, box, op=_OPERATIONS[operation])
        own_numbers = box.detach().view(-1)
        other, sizes = torch.empty_like(own_numbers), [len(own_numbers), len(own_numbers)]
        sizes[self.rank] = 0
        return _Reduced(self.all_to_all(other, own_numbers, sizes, sizes), own_numbers, other, operation)

    @override
    def broadcast(self, box: Tensor) -> PendingWork:
        return self._begin(dist.broadcast, box, group_src=0)

    @override
    def all_to_all(
        self, out: Tensor, rows: Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> PendingWork:
        # gloo checks this only in the thread that meets the others.
        if (sum(received), sum(sent), len(sent)) != (len(out), len(rows), self.size):
            raise ValueError(
                f"{list(sent)} of {len(rows)} rows to send, {list(received)} of {len(out)} to receive"
            )
        sizes = {"output_split_sizes": list(received), "input_split_sizes": list(sent)}
        return self._begin(dist.all_to_all_single, out, rows, **sizes)

    @override
    def within(self, groups: Sequence[Sequence[int]]) -> "ProcessLink":
        """Of all processes only."""
        assert self._group is None, "every process takes part in making a group"
        timeout = None if self._timeout_s is None else timedelta(seconds=self._timeout_s)
        with peers_may_be_lost(self.rank):
            made = [(list(members), dist.new_group(list(members), timeout=timeout)) for members in groups]
        ((members, group),) = [ranks_and_group for ranks_and_group in made if self.rank in ranks_and_group[0]]
        return ProcessLink(members.index(self.rank), len(members), group, self._timeout_s)

    @override
    def now(self) -> float:
        return time.perf_counter()

    def _begin(self, collective: Callable[..., Any], *arguments: Any, **more: Any) -> PendingWork:
        # Wrong arguments are plain RuntimeErrors; gloo's errors come while waiting.
        with peers_may_be_lost(self.rank, dist.DistError):
            work = collective(*arguments, group=self._group, async_op=True, **more)
        # On a GPU a wait also raises what kernels before it did wrong. There NCCL's errors have a type.
        return _Work(work, self.rank, RuntimeError if arguments[0].device.type == "cpu" else dist.DistError)


class _Work:
    """A running collective in which another rank may be lost."""

    def __init__(self, work: Any, rank: int, errors: type[RuntimeError]) -> None:
        self._work, self._rank, self._errors = work, rank, errors

    def wait(self) -> None:
        with peers_may_be_lost(self._rank, self._errors):
            self._work.wait()


class _Reduced:
    """A tensor on its way to the other of two ranks, whose tensor is on its way here."""

    def __init__(
        self, exchange: PendingWork, own_numbers: Tensor, other: Tensor, operation: Operation
    ) -> None:
        self._under_way: tuple[PendingWork, Tensor, Tensor] | None = exchange, own_numbers, other
        self._operation = operation

    def wait(self) -> None:
        if self._under_way is None:
            return
        (exchange, own_numbers, other), self._under_way = self._under_way, None
        exchange.wait()
        reduce = torch.add if self._operation == "sum" else torch.maximum
        reduce(own_numbers, other, out=own_numbers)
