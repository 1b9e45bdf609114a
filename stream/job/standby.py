"""Before the job has its store: whether the configuration fits it, and a standby that waits until another job is gone."""

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.store import LaneHeader
from freshet_graph.stream.kafka.client import NoBrokerError
from freshet_graph.stream.kafka.takeover import topic_bounds
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.stream.sink import log_header
from freshet_graph.stream.store.errors import LaneBusyError
from freshet_graph.stream.store.files.records import read_record, require_agreement
from freshet_graph.stream.store.lane import layout as lane_layout
from freshet_graph.stream.store.lane.reader import manifest_taus
from freshet_graph.stream.store.lane.state import lane_header
from freshet_graph.stream.store.log import layout as log_layout
from freshet_graph.stream.store.log.commits import numbers, require_header

_log = structlog.get_logger()


def require_same(config: StreamConfig) -> None:
    """Check that a store, if there is one, is that of the configuration.

    Raises:
        MismatchError: The log or a lane was made for something else.
        PartitionError: A lane's algorithm or parameters.
        CorruptError, FormatVersionError: A header is damaged, or of another release.
    """
    wanted = log_header(config)
    root = log_layout.log_folder(config.store)
    path = root / log_layout.HEADER
    if path.exists() and any(True for _ in numbers(root)):
        require_header(root, wanted)
    for lane in config.lanes:
        header = lane_header(lane, wanted)
        root = lane_layout.lane_folder(config.store, lane.name)
        path = root / lane_layout.HEADER
        if path.exists() and manifest_taus(root):
            stored = read_record(path, LaneHeader)
            require_agreement(path, stored, header, "a lane", changeable={"base_every"})


def require_fit(config: StreamConfig) -> None:
    """Check now what would otherwise fail when the other job is gone and this one is needed.

    Raises:
        Failure: Kafka refuses, or a topic doesn't exist. Brokers that don't answer are only logged.
        StoreError, PartitionError: As ``require_same``.
    """
    require_same(config)
    try:
        topic_bounds(config.kafka)
    except NoBrokerError as error:
        _log.warning("no broker answers so far", graph=config.graph, error=str(error))


LOOK_S = 0.5
"""How often a standby looks whether the other job is gone."""


Opened = TypeVar("Opened")


class StoppedEarly(BaseException):
    """The job was stopped before it read anything: there is nothing to commit."""


class Standby:
    """Opens what only one process may write. Locks die with their process, so a crash leaves nothing to clear up.

    Attributes:
        reason: Who writes the store, while this process waits for it; else None.
    """

    def __init__(
        self,
        graph: str,
        *,
        waits: bool,
        stop: Callable[[], bool],
        shown: Callable[[bool], None],
        check: Callable[[], None],
    ) -> None:
        """Wait for nothing yet.

        Args:
            graph: For the log.
            waits: Whether to wait at all, or to fail.
            stop: Asked at each look; True gives up.
            shown: Called with True when waiting begins, with False when it has ended well.
            check: Called when waiting begins; its exceptions end the wait.
        """
        self.reason: str | None = None
        self._graph, self._waits, self._stop, self._shown, self._check = graph, waits, stop, shown, check

    def alone(self, open_: Callable[[], Opened]) -> Opened:
        """The result of ``open_`` once no other process holds it.

        Raises:
            LaneBusyError: Another process holds it, and this one does not wait.
            StoppedEarly: It waited, and was stopped.
            Exception: From ``check``.
        """
        while True:
            beat()
            try:
                opened = open_()
            except LaneBusyError as busy:
                if not self._waits:
                    raise LaneBusyError(f"{busy}. run --standby waits for it") from None
                if self._stop():
                    raise StoppedEarly from None
                if self.reason is None:
                    self._check()
                    self._shown(True)
                    _log.info("standing by", graph=self._graph, reason=str(busy))
                self.reason = str(busy)
                time.sleep(LOOK_S)
                continue
            if self.reason is not None:
                self.reason = None
                self._shown(False)
                _log.info("taking over", graph=self._graph)
            return opened
