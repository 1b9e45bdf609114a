"""Several ranks in one process: a thread each, joined by shared memory, or by a network with a clock of its own.

Only the link is a double: counting, gradients, fixed order and all else is the code of ``Ranks``.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from freshet_graph.trainer.ranks import Ranks

PATIENCE_S = 60.0


@dataclass(frozen=True)
class FakeLink:
    """A network to be imagined between threads, by a virtual clock: it takes time, but nobody's.

    All ranks send at once, each over a line of its own; a collective begins when the last rank has come and the one
    before is over.

    Attributes:
        latency_s: Of a collective.
        bytes_per_s: Of each line.
    """

    latency_s: float
    bytes_per_s: float

    def seconds(self, sent_bytes: int) -> float:
        """Seconds of a collective whose busiest rank sends so many bytes."""
        return self.latency_s + sent_bytes / self.bytes_per_s


@dataclass
class Gathering:
    """One collective: what each rank brought, and when, by its own clock."""

    what: str
    brought: dict[int, Any] = field(default_factory=dict)
    began_s: dict[int, float] = field(default_factory=dict)
    taken: int = 0
    ended_s: float = 0.0


class Meeting:
    """Where the threads of ``size`` ranks exchange what they bring, collective after collective.

    Args:
        size: Ranks.
        network: None: one that takes no time.
        turn: Held by the one thread that works while the others wait, so that none takes time of another; None: all work.
    """

    def __init__(
        self, size: int, network: FakeLink | None = None, turn: "threading.Lock | None" = None
    ) -> None:
        self.size, self.network, self.turn = size, network, turn
        self._changed = threading.Condition()
        self._gatherings: dict[int, Gathering] = {}
        self._next = [0] * size
        self._free_s = 0.0
        self._broken = False
        self._groups: dict[tuple[int, ...], Meeting] = {}

    def bring(self, rank: int, what: str, value: Any, sent_bytes: int, now_s: float) -> int:
        """Begin this rank's next collective; its number."""
        with self._changed:
            number, self._next[rank] = self._next[rank], self._next[rank] + 1
            gathering = self._gatherings.setdefault(number, Gathering(what))
            if gathering.what != what:
                self._broken = True
                self._changed.notify_all()
                raise AssertionError(f"rank {rank} begins {what}, another one {gathering.what}")
            gathering.brought[rank], gathering.began_s[rank] = (value, sent_bytes), now_s
            if len(gathering.brought) == self.size:
                gathering.ended_s = self._end(gathering)
                self._changed.notify_all()
            return number

    def take(self, number: int) -> tuple[list[Any], float]:
        """The contributions of all ranks to a collective, and its end by the network's clock."""
        if self.turn is None:
            return self._taken(number)
        self.turn.release()
        try:
            return self._taken(number)
        finally:
            self.turn.acquire()

    def _taken(self, number: int) -> tuple[list[Any], float]:
        with self._changed:
            gathering = self._gatherings[number]
            there = self._changed.wait_for(
                lambda: self._broken or len(gathering.brought) == self.size,
                PATIENCE_S if self.turn is None else None,  # by turns the last one may be long in coming
            )
            if self._broken:
                raise threading.BrokenBarrierError
            if not there:
                self._broken = True
                self._changed.notify_all()
                raise AssertionError(f"only ranks {sorted(gathering.brought)} came to {gathering.what}")
            gathering.taken += 1
            if gathering.taken == self.size:
                del self._gatherings[number]
            return [gathering.brought[rank][0] for rank in range(self.size)], gathering.ended_s

    def abort(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()
            groups = list(self._groups.values())
        for group in groups:
            group.abort()

    def group(self, members: tuple[int, ...]) -> "Meeting":
        """Where the members of a group meet; a network of its own."""
        with self._changed:
            return self._groups.setdefault(members, Meeting(len(members), self.network, self.turn))

    def _end(self, gathering: Gathering) -> float:
        if self.network is not None:
            most = max(sent_bytes for _, sent_bytes in gathering.brought.values())
            self._free_s = max(self._free_s, *gathering.began_s.values()) + self.network.seconds(most)
        return self._free_s


class ThreadLink:
    """A link between threads (``freshet_graph.trainer.wire.link.Link``).

    Args:
        rank: Of the thread.
        size: Ranks.
        meeting: Where they meet.
        worked_s: Seconds that the thread has worked so far, which the virtual clock counts as well.

    Attributes:
        seconds: Of the virtual clock beside these, one number, which groups share.
        seen: Device of what was given to each collective so far, in order.
    """

    def __init__(
        self, rank: int, size: int, meeting: Meeting, worked_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.rank, self.size, self._worked_s = rank, size, worked_s
        self.seconds = [0.0]
        self.seen: list[str] = []
        self._meeting = meeting

    def all_reduce(self, box: Tensor, operation: str) -> "Arrival":
        def fill(everyones: list[Tensor]) -> None:
            assert len({each.shape for each in everyones}) == 1, [each.shape for each in everyones]
            table = torch.stack(everyones)
            box.copy_(table.sum(dim=0) if operation == "sum" else table.amax(dim=0))

        sent_bytes = 2 * (self.size - 1) * box.nbytes // self.size
        return self._begin(f"all_reduce {operation}", box, box.detach().clone(), sent_bytes, fill)

    def broadcast(self, box: Tensor) -> "Arrival":
        sent_bytes = (self.size - 1) * box.nbytes if self.rank == 0 else 0
        value = box.detach().clone()
        return self._begin("broadcast", box, value, sent_bytes, lambda everyones: box.copy_(everyones[0]))

    def all_to_all(
        self, out: Tensor, rows: Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> "Arrival":
        blocks = [block.clone() for block in rows.detach().split(list(sent))]

        def fill(everyones: list[list[Tensor]]) -> None:
            arrived = [theirs[self.rank] for theirs in everyones]
            assert [len(block) for block in arrived] == list(received)
            out.copy_(torch.cat(arrived))

        sent_bytes = rows.nbytes - blocks[self.rank].nbytes
        return self._begin("all_to_all", rows, blocks, sent_bytes, fill)

    def within(self, groups: Sequence[Sequence[int]]) -> "ThreadLink":
        ((*members,),) = [group for group in groups if self.rank in group]
        meeting = self._meeting.group(tuple(members))
        link = ThreadLink(members.index(self.rank), len(members), meeting, self._worked_s)
        link.seconds, link.seen = self.seconds, self.seen
        return link

    def now(self) -> float:
        return self.seconds[0] + self._worked_s()

    def _begin(
        self, what: str, given: Tensor, value: Any, sent_bytes: int, fill: Callable[[Any], Any]
    ) -> "Arrival":
        self.seen.append(given.device.type)
        number = self._meeting.bring(self.rank, what, value, sent_bytes, self.now())
        return Arrival(self, self._meeting, number, fill)


class Arrival:
    """A collective of threads under way."""

    def __init__(self, link: ThreadLink, meeting: Meeting, number: int, fill: Callable[[Any], Any]) -> None:
        self._link, self._meeting, self._number, self._fill = link, meeting, number, fill

    def wait(self) -> None:
        everyones, ended_s = self._meeting.take(self._number)
        with torch.no_grad():
            self._fill(everyones)
        self._link.seconds[0] += max(0.0, ended_s - self._link.now())


class ThreadRanks(Ranks):
    """One of several ranks, each a thread."""

    def __init__(
        self,
        rank: int,
        size: int,
        meeting: Meeting,
        device: str = "cpu",
        worked_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.thread_link = ThreadLink(rank, size, meeting, worked_s)
        super().__init__(rank, size, device, link=self.thread_link)

    @property
    def now_s(self) -> float:
        """The virtual clock."""
        return self.thread_link.now()

    def compute(self, seconds: float) -> None:
        """Charge a computation to the virtual clock."""
        self.thread_link.seconds[0] += seconds


def side_by_side(
    size: int,
    work: Callable[[Any], Any],
    network: FakeLink | None = None,
    device: str = "cpu",
    worked_s: Callable[[], float] = lambda: 0.0,
    turn: "threading.Lock | None" = None,
) -> list[Any]:
    """What ``work`` returns on each of ``size`` ranks; ``worked_s`` as for ``ThreadLink``, ``turn`` as for ``Meeting``."""
    meeting = Meeting(size, network, turn)
    found: list[Any] = [None] * size
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            if turn is not None:
                turn.acquire()
            found[rank] = work(ThreadRanks(rank, size, meeting, device, worked_s))
        except BaseException as error:  # noqa: BLE001  raised below
            if not isinstance(error, threading.BrokenBarrierError):
                errors.append(error)
            meeting.abort()
        finally:
            if turn is not None:
                turn.release()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found
