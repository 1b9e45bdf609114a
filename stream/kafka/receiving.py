"""How the consumer's client takes bytes off a socket, and when it asks for more."""

import socket
from typing import Any

from kafka import KafkaConsumer
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from typing_extensions import override

READ_BYTES = 256 << 10
"""Most bytes of one read. The client asks for 4 KiB: an answer of Arrow batches then takes hundreds of system calls, a tenth
of what reading it costs."""


class LargeReads(socket.socket):
    """A socket that gives as much as there is, up to ``READ_BYTES``, whatever number of bytes is asked for."""

    @override
    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        return super().recv(max(bufsize, READ_BYTES), flags)


class _Manager(KafkaConnectionManager):  # type: ignore[misc]  # the client has no types
    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        transport = await super()._build_transport(node, timeout_at)
        # The client has no setting for the size of a read. A read of TLS gives one record, 16 KiB at most, in any case.
        if not self.ssl_enabled:
            transport._sock = LargeReads(fileno=transport._sock.detach())
            transport._sock.setblocking(False)
        return transport


def large_reads_client(**settings: Any) -> KafkaNetClient:
    """The consumer's setting ``kafka_client``: its usual client, with connections that read more at once."""
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
