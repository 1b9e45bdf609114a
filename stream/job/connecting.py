"""The readers of a job, one per cycle: the first must find brokers, later ones wait for them."""

import time
from collections.abc import Callable

import structlog

from schemas.config import StreamConfig
from stream.job.standby import StoppedEarly
from stream.kafka.answers import Answers
from stream.kafka.client import NoBrokerError
from stream.kafka.reader import ASK_S, NextOffset, PartitionReader, Skipped
from stream.kafka.tls import LOGIN_AGAIN_S, CredentialError, LoginRefusedError
from stream.kafka.topics import NoLeaderError
from stream.service.heartbeat import beat

AGAIN_S = 1.0
"""Pause before brokers are looked for again: some refuse at once."""

_log = structlog.get_logger()


class Connecting:
    """Makes the readers.

    Attributes:
        begun: Whether something was read. Until then, brokers that don't answer end the job, and so does a stop.
        waits: Whether nothing is being read yet, or no longer: the job waits for the log, lanes or brokers.
        answers: Whether brokers answer.
        no_leader: The sentence about the topic partitions whose leaders the next reader waits for; else None.
    """

    def __init__(self, config: StreamConfig, stopping: Callable[[], bool], skipped: Skipped) -> None:
        self._config, self._stopping, self._skipped = config, stopping, skipped
        self.begun = False
        self.waits = True
        self.answers = Answers(config.kafka.bootstrap)
        self.no_leader: str | None = None

    def reader(self, next_offset: NextOffset, arrival_s: float) -> PartitionReader | None:
        """A reader that resumes where the log ends; None if the job was stopped while it waited for brokers.

        The end of a wait counts as an arrival; otherwise the last message came at ``arrival_s``.

        Raises:
            NoBrokerError, CredentialError: The first reader finds no broker, or none that it may trust or log in at.
            StoppedEarly: The job was stopped before the first reader.
        """
        self.waits = True
        waited = False
        quiet_s = min(ASK_S, self._config.snapshots.idle_timeout_s / 2)
        try:
            while not self._stopping():
                beat()
                pause_s = AGAIN_S
                try:
                    reader = PartitionReader(
                        self._config.kafka,
                        next_offset,
                        self._skipped,
                        ask_quiet_s=quiet_s,
                        answers=self.answers,
                    )
                except NoLeaderError as error:
                    self.answers.heard()
                    self._wait_for_leader(str(error))
                except (NoBrokerError, CredentialError) as error:
                    if not self.begun:
                        raise
                    self.answers.missed(error)
                    pause_s = LOGIN_AGAIN_S if isinstance(error, LoginRefusedError) else AGAIN_S
                else:
                    if not (self.answers.heard() or waited):
                        reader.last_arrival_s = arrival_s
                    self.no_leader = None
                    return reader
                waited = True
                time.sleep(pause_s)
        except StoppedEarly:
            if not self.begun:
                raise
        finally:
            self.waits = not self.begun
        return None

    def begin(self) -> None:
        """What a reader has found is checked, and is read from now on."""
        self.begun, self.waits = True, False

    def _wait_for_leader(self, reason: str) -> None:
        if self.no_leader is None:
            _log.warning("a topic partition has no leader, waiting for it", reason=reason)
        self.no_leader = reason
