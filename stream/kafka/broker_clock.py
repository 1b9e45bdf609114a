"""The brokers' clock: the leader of a KRaft cluster's quorum reports its own.

The time of a record is the producer's own (CreateTime) unless the topic has ``message.timestamp.type=LogAppendTime``,
so a record alone cannot vouch for the present.
"""

import time
from typing import NamedTuple

import structlog
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from freshet_graph.schemas.config import Kafka
from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.kafka.client import client_settings, connected
from freshet_graph.stream.service.failure import Failure

ANSWER_MS = 2_000
"""How long brokers have to answer; nothing is read meanwhile."""

_US_PER_MS = US_PER_S // 1000
_log = structlog.get_logger()


class Between(NamedTuple):
    """A moment that is known to lie between two times, microseconds since the epoch."""

    earliest_us: int
    latest_us: int


class BrokerClock:
    """Asks the brokers for the time. Clusters without a quorum don't have it, and some users may not ask."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._client: KafkaAdminClient | None = None
        self._answers = True

    def ask(self) -> Between | None:
        """The brokers' present; None if they don't report it."""
        if not self._answers:
            return None
        try:
            if self._client is None:
                short = {"request_timeout_ms": ANSWER_MS, "bootstrap_timeout_ms": ANSWER_MS}
                self._client = connected(KafkaAdminClient, client_settings(self._kafka) | short)
            asked_s = time.monotonic()
            quorum = self._client.describe_metadata_quorum()
            took_us = round((time.monotonic() - asked_s) * US_PER_S)
        except (KafkaError, OSError, Failure) as error:
            # A missing right or quorum lasts, an outage does not.
            self._answers = getattr(error, "retriable", True)
            _log.debug("brokers don't report the time", error=one_line(error))
            self.close()
            return None
        told_ms = [
            replica.get("last_caught_up_timestamp", -1)
            for topic in quorum["topics"]
            for part in topic["partitions"]
            for replica in part["current_voters"]
        ]
        newest_ms = max(told_ms, default=-1)
        if newest_ms <= 0:
            self._answers = (
                not told_ms
            )  # Kafka 3.3 has voters without times; without voters there is no leader at the moment
            return None
        return Between(newest_ms * _US_PER_MS, (newest_ms + 1) * _US_PER_MS + took_us)

    def close(self) -> None:
        """Leave the brokers."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
