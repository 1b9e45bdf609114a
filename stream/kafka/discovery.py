"""Topics while they are read: added partitions and topics, and topics that are deleted or made again."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping

import structlog
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from freshet_graph.schemas.config import Kafka
from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.store import Key
from freshet_graph.stream.background import ended
from freshet_graph.stream.kafka.client import NoBrokerError, client_settings, connected
from freshet_graph.stream.kafka.reader import made_again
from freshet_graph.stream.kafka.topics import NONE, UNKNOWN_TOPIC_OR_PARTITION
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.errors import OffsetGapError

LOOKS_WITHOUT_TOPIC = 2
"""A topic is gone if so many looks in a row don't find it: brokers that just started may not know it yet."""

FIRST_LOOK_S = 10.0
"""How long brokers have to report the topics' ids before anything is read."""

LOOK_AGAIN_S = 0.2

CONFIRM_S = 2.0
"""How long a commit waits for brokers to report the topics' ids. If they don't, it is made: in an outage no topic is read."""

CLOSE_S = 2.0

_log = structlog.get_logger()


class TopicWatch:
    """Looks at the topics every ``metadata_refresh_s``, from a thread with a client of its own.

    Brokers that don't answer are asked again: outages are reported by the reader.

    Attributes:
        lost: Why a named topic can't be read any more: it was deleted or made again; None while all exist.
        added: Partitions of the topics that are not being read.
        left: Why a topic of a pattern is not read any more: it was made again. One that was deleted is only logged.
        ids: Kafka's ids of the topics, as far as they are known.
    """

    def __init__(self, kafka: Kafka, ids: Mapping[str, str] | None = None) -> None:
        """Look at nothing before ``reading``; ``ids`` are those of the topics that the log has read."""
        self.lost: Exception | None = None
        self.added: set[Key] = set()
        self.left: Mapping[str, str] = {}
        self._gone: set[str] = set()
        self._kafka = kafka
        self.ids = dict(ids or {})
        self._identified: set[str] = set()
        self._names = kafka.topics_among(())
        self._reading: frozenset[Key] | None = None
        self._missing: Counter[str] = Counter()
        self._over = False
        self._requested = self._tried = self._answered = 0  # questions of ``confirm``
        self._until_s = 0.0  # of the last of them
        self._changed = threading.Condition()
        self._client: KafkaAdminClient | None = None
        self._thread = threading.Thread(target=self._run, name="topics", daemon=True)

    @property
    def changed(self) -> bool:
        """Whether the topics are no longer as they are being read."""
        leaving = self.left.keys() | self._gone
        leaves = bool(leaving) and any(topic in leaving for topic, _ in self._reading or ())
        return self.lost is not None or bool(self.added) or leaves

    def reading(self, partitions: Iterable[Key]) -> None:
        """Set the partitions that are being read; others are found at the next look.

        The first call looks at once, and again until every topic's id is known. ``lost`` then covers all that happened
        before, and no later id is that of a topic made again meanwhile.

        Raises:
            NoBrokerError: The brokers don't report an id in time, or can't be connected to for lack of files.
        """
        self._reading, self.added, self._gone = frozenset(partitions), set(), set()
        self._names = self._kafka.topics_among({topic for topic, _ in self._reading})
        if self._thread.ident is None:
            self._look_first()
            self._thread.start()

    def know(self, ids: Mapping[str, str]) -> None:
        """Note the ids of topics before their first message is read."""
        for name, topic_id in ids.items():
            self._compare(name, topic_id)

    def leave(self, topics: Mapping[str, str]) -> None:
        """Leave topics of patterns out, each for a reason of one or two sentences."""
        for topic, reason in topics.items():
            if topic not in self.left:
                _log.error("a topic is not read any more, the others are", topic=topic, reason=reason)
        self.left = {**topics, **self.left}

    def confirm(self, topics: Iterable[str] = ()) -> None:
        """Check that messages of these topics read before this call are of those that the log reads.

        For any thread but the watch's own.

        Raises:
            OffsetGapError: A named topic, or one of these, was made again.
        """
        with self._changed:
            self._requested += 1
            request, self._until_s = self._requested, time.monotonic() + CONFIRM_S
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._over or self._answered >= request, CONFIRM_S)
        if isinstance(self.lost, OffsetGapError):
            raise self.lost
        for topic in topics:
            if topic in self.left:
                raise OffsetGapError(self.left[topic])

    def close(self) -> None:
        """Stop looking; a request under way ends with the process."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._thread.ident is None:
            self._leave()
        else:
            ended(self._thread, CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                waited_for = self._requested > self._answered and time.monotonic() < self._until_s
                pause_s = LOOK_AGAIN_S if waited_for else self._kafka.metadata_refresh_s
                self._changed.wait_for(lambda: self._over or self._requested > self._tried, pause_s)
                if self._over:
                    break
                self._tried = self._requested
            if self._try() is None:
                with self._changed:
                    self._answered = self._tried
                    self._changed.notify_all()
        self._leave()

    def _look_first(self) -> None:
        until_s = time.monotonic() + FIRST_LOOK_S
        while True:
            error = self._try()
            unknown = [name for name in self._names if name not in self._identified]
            if not unknown or self.lost is not None:
                return
            if isinstance(error, NoBrokerError):
                raise error
            if time.monotonic() > until_s:
                raise NoBrokerError(
                    f"the brokers at {self._kafka.bootstrap} don't report the ids of topics {', '.join(unknown)}"
                    f"{f' ({one_line(error)})' if error else ''}. Start again when they do"
                )
            self._missing.clear()  # brokers that just started: don't count this look
            time.sleep(LOOK_AGAIN_S)

    def _try(self) -> Exception | None:
        """Look once; returns why that failed."""
        try:
            if self._client is None:
                self._client = connected(KafkaAdminClient, client_settings(self._kafka))
            self._look(self._client)
        except (KafkaError, OSError, Failure) as error:
            _log.debug("topics can't be checked", error=one_line(error))
            self._leave()
            return error
        return None

    def _leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _look(self, client: KafkaAdminClient) -> None:
        reading, partitions = self._reading, set()
        existing = client.list_topics() if self._kafka.has_patterns else ()
        for topic in client.describe_topics(list({*self._names, *self._kafka.topics_among(existing)})):
            name, code = topic["name"], topic["error_code"]
            self._missing[name] = self._missing[name] + 1 if code == UNKNOWN_TOPIC_OR_PARTITION else 0
            if self._missing[name] >= LOOKS_WITHOUT_TOPIC and self._kafka.by_pattern(name):
                self._end(name)
            elif self._missing[name] >= LOOKS_WITHOUT_TOPIC:
                self.lost = self.lost or Failure(
                    f"topic {name} at {self._kafka.bootstrap} was deleted while it was being read. The messages read are "
                    "in the log. Remove it from kafka.topics, or make it again and choose a new store"
                )
            if code != NONE:
                continue
            self._compare(name, topic.get("topic_id"))
            if name in self.left:
                continue
            partitions |= {
                (name, part["partition_index"]) for part in topic["partitions"] if part["leader_id"] >= 0
            }
        if reading is not None and reading is self._reading:
            self.added = partitions - reading

    def _end(self, name: str) -> None:
        """A topic of a pattern was deleted."""
        if name not in self._gone:
            reason = f"topic {name} at {self._kafka.bootstrap} was deleted. The messages read are in the log"
            _log.warning("a topic is gone, the others are read", topic=name, reason=reason)
        self._gone.add(name)

    def _compare(self, name: str, topic_id: str | None) -> None:
        self._identified.add(name)
        if not topic_id:  # brokers before 2.8 have none
            return
        before = self.ids.get(name, topic_id)
        self.ids = self.ids | {name: before}
        if before == topic_id:
            return
        if self._kafka.by_pattern(name):
            self.leave({name: made_again(name, self._kafka.bootstrap)})
        else:
            self.lost = self.lost or OffsetGapError(made_again(name, self._kafka.bootstrap))
