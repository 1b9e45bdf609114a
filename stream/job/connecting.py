"""The readers of a job, one per cycle: the first must find brokers, later ones wait for them."""

from collections.abc import Callable

from schemas.config import StreamConfig
from stream.job.standby import StoppedEarly
from stream.kafka.answers import Answers
from stream.kafka.client import NoBrokerError
from stream.kafka.reader import ASK_S, NextOffset, PartitionReader, Skipped
from stream.service.heartbeat import beat


class Connecting:
    """Makes the readers.

    Attributes:
        begun: Whether something was read. Until then, brokers that don't answer end the job, and so does a stop.
        waits: Whether nothing is being read yet, or no longer: the job waits for the log, lanes or brokers.
    """

    def __init__(self, config: StreamConfig, stopping: Callable[[], bool], skipped: Skipped) -> None:
        self._config, self._stopping, self._skipped = config, stopping, skipped
        self._answers: Answers | None = None  # of a reader that is being made
        self.begun = False
        self.waits = True

    @property
    def silent_s(self) -> float | None:
        """Seconds without an answer while a reader is being made."""
        return self._answers.silent_s if self._answers is not None else None

    def reader(self, next_offset: NextOffset, arrival_s: float) -> PartitionReader | None:
        """A reader that resumes where the log ends; None if the job was stopped while it waited for brokers.

        The end of an outage counts as an arrival; otherwise the last message came at ``arrival_s``.

        Raises:
            NoBrokerError: The first reader finds none.
            StoppedEarly: The job was stopped before the first reader.
        """
        self.waits = True
        try:
            while not self._stopping():
                beat()
                try:
                    quiet_s = min(ASK_S, self._config.snapshots.idle_timeout_s / 2)
                    kafka = self._config.kafka
                    reader = PartitionReader(kafka, next_offset, self._skipped, ask_quiet_s=quiet_s)
                except NoBrokerError as error:
                    if not self.begun:
                        raise
                    self._answers = self._answers or Answers(self._config.kafka.bootstrap)
                    self._answers.missed(error)
                    continue
                if self._answers is None:
                    reader.last_arrival_s = arrival_s
                else:
                    self._answers.heard()
                    self._answers = None
                return reader
        except StoppedEarly:
            if not self.begun:
                raise
        finally:
            self.waits = not self.begun
        return None

    def begin(self) -> None:
        """What a reader has found is checked, and is read from now on."""
        self.begun, self.waits = True, False
