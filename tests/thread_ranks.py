"""Several ranks in one process: a thread each, collectives over shared slots."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from trainer.ranks import Ranks


class Meeting:
    """Where the threads of ``size`` ranks exchange what they bring."""

    def __init__(self, size: int) -> None:
        self.slots: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=60)


class ThreadRanks(Ranks):
    """One of several ranks; only what strategies for event models use."""

    def __init__(self, rank: int, size: int, meeting: Meeting) -> None:
        super().__init__(rank, size)
        self._meeting = meeting

    def everyones(self, value: Any) -> list[Any]:
        began = time.perf_counter()
        self._meeting.slots[self.rank] = value
        self._meeting.barrier.wait()
        found = list(self._meeting.slots)
        self._meeting.barrier.wait()
        self.wait_s += time.perf_counter() - began
        return found

    def maximum(self, values: Sequence[int]) -> list[int]:
        return [max(column) for column in zip(*self.everyones(list(values)), strict=True)]

    def total(self, values: Sequence[float]) -> list[float]:
        return [sum(column) for column in zip(*self.everyones(list(values)), strict=True)]

    def exchange_sizes(self, sizes: Sequence[int]) -> list[int]:
        return [theirs[self.rank] for theirs in self.everyones(list(sizes))]

    def exchange(self, rows, sent, received, purpose):  # type: ignore[no-untyped-def]
        blocks = self.everyones([block.clone() for block in torch.split(rows.detach(), list(sent))])
        found = torch.cat([theirs[self.rank] for theirs in blocks])
        assert len(found) == sum(received)
        return found

    def sum_rows(self, rows, purpose):  # type: ignore[no-untyped-def]
        tables = self.everyones(rows.clone())
        assert len({table.shape for table in tables}) == 1
        rows.copy_(torch.stack(tables).sum(dim=0))
        return rows

    def average(self, tables) -> None:  # type: ignore[no-untyped-def]
        everyones = self.everyones([table.detach().clone() for table in tables])
        for at, table in enumerate(tables):
            table.copy_(torch.stack([theirs[at] for theirs in everyones]).mean(dim=0))

    def largest(self, values: np.ndarray) -> np.ndarray:
        return np.max(np.stack(self.everyones(values.copy())), axis=0)

    def sum_gradients(self, parameters) -> None:  # type: ignore[no-untyped-def]
        wanted = [p for p in parameters if p.requires_grad]
        own = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in wanted]
        everyones = self.everyones(own)
        for at, parameter in enumerate(wanted):
            parameter.grad = torch.stack([gradients[at] for gradients in everyones]).sum(dim=0)


def side_by_side(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """What ``work`` returns on each of ``size`` ranks."""
    meeting = Meeting(size)
    found: list[Any] = [None] * size
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            found[rank] = work(ThreadRanks(rank, size, meeting))
        except BaseException as error:  # noqa: BLE001  raised below
            if not isinstance(error, threading.BrokenBarrierError):
                errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found
