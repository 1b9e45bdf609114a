"""The stage between polls and the log: validates messages by the rules of their topic, while the present is known."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import structlog

from freshet_graph.schemas.config import StreamConfig, Topic
from freshet_graph.stream.decode.decoder import Decoder
from freshet_graph.stream.decode.formats.interface import UnavailableError
from freshet_graph.stream.kafka.present import Present
from freshet_graph.stream.microbatch import MicroBatch, RawBatch
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.heartbeat import beat

LOOK_S = 1.0
"""How often an obstacle is looked at again."""

_log = structlog.get_logger()


class Decoding:
    """Decodes the polls of all topics.

    Args:
        config: Topics and rules.
        present: Bounds event times.
        wait: Waits for some seconds; True: drop the poll, which will be read again.
        shown: Called with the error of this host's clock, seconds, while there is an obstacle, and with 0 after it.
        gives_up: Whether an obstacle ends the job.
    """

    def __init__(
        self,
        config: StreamConfig,
        present: Present,
        wait: Callable[[float], bool],
        shown: Callable[[float], None],
        *,
        gives_up: bool = False,
    ) -> None:
        self._present, self._wait, self._shown, self._gives_up = present, wait, shown, gives_up
        self._config = config
        self._decoders: dict[str, Decoder] = {}
        self._waiting: dict[tuple[str, int], tuple[RawBatch, str]] = {}  # on a cluster, several at once

    @property
    def reason(self) -> str | None:
        """Why polls are kept; None: none is. For any thread."""
        waiting = list(self._waiting.values())
        return (
            "; ".join(f"topic {raw.topic} partition {raw.partition} waits: {why}" for raw, why in waiting)
            or None
        )

    @property
    def unread(self) -> int:
        """Offsets of the polls that are kept. For any thread."""
        return sum(raw.end_offset - raw.first_offset for raw, _ in list(self._waiting.values()))

    def warm_up(self) -> None:
        """Compile or load the kernels, on a made-up message."""
        for topic in self._config.kafka.topics:
            decoder = self._made(topic)
            offsets, values = pa.array([0], pa.int64()), pa.array([b"{}"], pa.large_binary())
            decoder.decode(RawBatch(topic.label, 0, 0, 1, 1, offsets, values))
            beat()

    def batches(self, raw: RawBatch) -> Iterator[MicroBatch]:
        """Validate one poll, a bounded part of it at a time.

        While this host's clock can't be believed, or a schema registry doesn't answer or takes long, the poll is kept. Empty
        batches in its place let the sink commit what it has.

        Raises:
            Failure: There is an obstacle, and the job doesn't wait.
        """
        decoder, key = self._decoder(raw.topic), (raw.topic, raw.partition)
        met: set[str] = set()
        try:
            while (obstacle := self._obstacle(decoder, raw)) is not None:
                event, reason, pause_s = obstacle
                self._waiting[key] = raw, reason
                if pause_s:
                    if event not in met:
                        _log.error(event, topic=raw.topic, reason=reason)
                    met.add(event)
                    self._shown(self._present.error_s)
                    if self._gives_up:
                        raise Failure(reason)
                nothing = replace(raw[:0], end_offset=raw.first_offset, quiet=None, skipped=0)
                yield from decoder.batches(nothing)
                beat()
                if self._wait(pause_s):
                    return
        finally:
            self._waiting.pop(key, None)
        if met:
            self._shown(0.0)
            _log.info("messages are read again", topic=raw.topic)
        yield from decoder.batches(raw)

    def _decoder(self, name: str) -> Decoder:
        if name not in self._decoders:
            topic = self._config.kafka.topic_of(name)
            assert topic is not None, "only topics of the configuration are read"
            self._decoders[name] = self._made(topic)
        return self._decoders[name]

    def _made(self, topic: Topic) -> Decoder:
        return Decoder(topic, self._config, now_us=self._present.now_us)

    def _obstacle(self, decoder: Decoder, raw: RawBatch) -> tuple[str, str, float] | None:
        """Why a poll can't be decoded now: the event for the log, a sentence, and seconds before it is looked at again."""
        reason = self._present.check(raw)
        if reason is not None:
            return "nothing is read by a clock that can't be right", reason, LOOK_S
        event = "a topic waits for the schemas of its messages"
        try:
            progress = decoder.prepare(raw)
        except UnavailableError as error:
            return event, str(error), LOOK_S
        return None if progress is None else (event, progress, 0.0)
