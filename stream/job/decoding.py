"""The stage between polls and the log: validates messages by the rules of their topic, while the present is known."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import structlog

from schemas.config import StreamConfig
from stream.decode.decoder import Decoder
from stream.decode.formats.interface import UnavailableError
from stream.kafka.present import Present
from stream.microbatch import MicroBatch, RawBatch
from stream.service.failure import Failure
from stream.service.heartbeat import beat

LOOK_S = 1.0
"""How often an obstacle is looked at again."""

_log = structlog.get_logger()


class Decoding:
    """Decodes the polls of all topics.

    Args:
        config: Topics and rules.
        present: Bounds event times.
        wait: Waits for some seconds; True: drop the poll, which will be read again. None: an obstacle ends the job.
        shown: Called with the error of this host's clock, seconds, while there is an obstacle, and with 0 after it.
    """

    def __init__(
        self,
        config: StreamConfig,
        present: Present,
        wait: Callable[[float], bool] | None,
        shown: Callable[[float], None],
    ) -> None:
        self._present, self._wait, self._shown = present, wait, shown
        self._decoders = {
            topic.name: Decoder(topic, config, now_us=present.now_us) for topic in config.kafka.topics
        }

    def warm_up(self) -> None:
        """Compile or load the kernels, on a made-up message."""
        for topic, decoder in self._decoders.items():
            offsets, values = pa.array([0], pa.int64()), pa.array([b"{}"], pa.large_binary())
            decoder.decode(RawBatch(topic, 0, 0, 1, 1, offsets, values))
            beat()

    def batches(self, raw: RawBatch) -> Iterator[MicroBatch]:
        """Validate one poll, a bounded part of it at a time.

        While this host's clock can't be believed, or a schema registry doesn't answer, the poll is kept. Empty batches in
        its place let the sink commit what it has.

        Raises:
            Failure: There is such an obstacle, and the job doesn't wait.
        """
        decoder = self._decoders[raw.topic]
        met: set[str] = set()
        while (obstacle := self._obstacle(decoder, raw)) is not None:
            event, reason = obstacle
            if event not in met:
                _log.error(event, topic=raw.topic, reason=reason)
            met.add(event)
            self._shown(self._present.error_s)
            if self._wait is None:
                raise Failure(reason)
            nothing = replace(
                raw,
                end_offset=raw.first_offset,
                offsets=raw.offsets[:0],
                values=raw.values[:0],
                quiet=None,
                skipped=0,
            )
            yield decoder.decode(nothing)
            beat()
            if self._wait(LOOK_S):
                return
        if met:
            self._shown(0.0)
            _log.info("messages are read again", topic=raw.topic)
        yield from decoder.batches(raw)

    def _obstacle(self, decoder: Decoder, raw: RawBatch) -> tuple[str, str] | None:
        """Why a poll can't be decoded now: the event for the log, and a sentence."""
        reason = self._present.check(raw)
        if reason is not None:
            return "nothing is read by a clock that can't be right", reason
        try:
            decoder.prepare(raw)
        except UnavailableError as error:
            return "a topic waits for the schemas of its messages", str(error)
        return None
