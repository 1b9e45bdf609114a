"""Long answers received in place: the client reads 4 KiB at a time and copies an answer six times.

Only the receiving of bytes changes. Frames, requests and their meaning stay the client's.
"""

import ssl
import time
from typing import Any

import numpy as np
from kafka import KafkaConsumer
from kafka.errors import KafkaConnectionError, KafkaProtocolError
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

LONG_BYTES = 64 << 10
"""Shorter answers are received by the client."""

KEPT_BYTES = 64 << 20
"""A buffer up to this large is used again for the next answer: whatever is kept of an answer was copied out of it."""

_PIECE_BYTES = 64 << 10
_NOTHING_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Answer:
    """The bytes of one answer as the client's parser handles them: filled, then read from the beginning.

    Args:
        content: As long as the answer, writable.
    """

    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def __len__(self) -> int:
        return len(self._content)

    @property
    def room(self) -> memoryview:
        """The bytes not filled yet."""
        return self._content[self._at :]

    def tell(self) -> int:
        """Bytes filled, or read, so far."""
        return self._at

    def seek(self, position: int) -> None:
        """Continue there."""
        self._at = position

    def write(self, piece: bytes) -> None:
        """Fill in the next bytes."""
        self._content[self._at : self._at + len(piece)] = piece
        self._at += len(piece)

    def read(self, count: int | None = None) -> memoryview:
        """The next ``count`` bytes, or all that are left, in place."""
        end = len(self._content) if count is None else min(self._at + count, len(self._content))
        found = self._content[self._at : end]
        self._at = end
        return found


class _InPlace(KafkaTCPTransport):  # type: ignore[misc]  # the client has no types
    """A connection that receives long answers where they are read."""

    _kept = memoryview(b"")

    async def _read_from_sock(self) -> None:
        while self._read and not self._closed:
            await self._net.wait_read(self._sock)
            self.last_read = time.monotonic()
            try:
                # Until nothing is there: TLS may hold bytes that the socket no longer shows.
                while self._read and not self._closed:
                    self._protocol.data_received(self._piece())
            except _NOTHING_NOW:
                continue
            except KafkaProtocolError as error:
                self.abort(error)
            except OSError as error:
                self.abort(KafkaConnectionError(error))

    def _piece(self) -> bytes:
        """The next bytes for the client's parser, never of more than one answer.

        Raises:
            OSError: None are there (``_NOTHING_NOW``), or the connection is broken.
        """
        parser = self._protocol.parser
        if not parser._receiving:
            return self._received(4 - parser._header.tell())
        missing = len(parser._rbuffer) - parser._rbuffer.tell()
        if missing > LONG_BYTES and not isinstance(parser._rbuffer, Answer):
            parser._rbuffer = self._answer(parser._rbuffer)
        if not isinstance(parser._rbuffer, Answer) or missing == 1:
            return self._received(min(missing, _PIECE_BYTES))
        count = self._sock.recv_into(parser._rbuffer.room[:-1])  # the last byte has the parser look at it
        if not count:
            raise ConnectionError("socket disconnected")
        parser._rbuffer.seek(parser._rbuffer.tell() + count)
        return b""

    def _received(self, most: int) -> bytes:
        piece: bytes = self._sock.recv(most)
        if not piece:
            raise ConnectionError("socket disconnected")
        return piece

    def _answer(self, begun: Any) -> Answer:
        """A buffer for an answer whose beginning the client has received."""
        size, filled = len(begun), begun.tell()
        content = self._kept[:size]
        if len(content) < size:
            content = np.empty(size, np.uint8).data
            if size <= KEPT_BYTES:
                self._kept = content
        answer = Answer(content)
        answer.write(bytes(begun[:filled]))
        return answer


class _InPlaceTls(_InPlace, KafkaSSLTransport):  # type: ignore[misc]
    pass


class _Manager(KafkaConnectionManager):  # type: ignore[misc]
    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        transport = await super()._build_transport(node, timeout_at)
        transport.__class__ = _InPlaceTls if self.ssl_enabled else _InPlace
        return transport


def in_place_client(**settings: Any) -> KafkaNetClient:
    """The consumer's setting ``kafka_client``: its usual client, with connections that receive in place."""
    net = NetworkSelector(**settings)
    return KafkaNetClient(net, _Manager(net, **settings), **settings)


def fetch_ahead(consumer: KafkaConsumer) -> None:
    """Ask for the next messages while others that were received wait to be handed out.

    The client asks again only once it has handed out everything: receiving and reading would take turns. While an answer
    is on its way this does nothing. Call it from the thread that polls.
    """
    fetcher = consumer._fetcher
    if not fetcher._nodes_with_pending_fetch_requests:
        fetcher.send_fetches()
