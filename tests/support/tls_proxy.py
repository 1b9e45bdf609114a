"""A proxy that ends TLS before a broker's plain listener, so that a test may change certificates under a running job."""

import asyncio
import ssl
import threading
from pathlib import Path

from certificates import Issued


class TlsProxy:
    """Listens at one address and forwards to another; clients need a certificate.

    Args:
        at: host:port to listen on.
        to: host:port of the broker.
    """

    def __init__(self, at: str, to: str) -> None:
        self._at, self._to = at.rpartition(":"), to.rpartition(":")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    def serve(self, certificate: Issued, trusted: Path) -> None:
        """Drop all connections, and take new ones with this certificate, from clients whose certificate one trusts."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.key)
        context.load_verify_locations(trusted)
        context.verify_mode = ssl.CERT_REQUIRED
        asyncio.run_coroutine_threadsafe(self._serve(context), self._loop).result(30)

    def close(self) -> None:
        """Drop all connections and stop."""
        asyncio.run_coroutine_threadsafe(self._serve(None), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, context: ssl.SSLContext | None) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()
        if context is not None:
            host, _, port = self._at
            self._server = await asyncio.start_server(self._connected, host, int(port), ssl=context)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._to
        from_broker, to_broker = await asyncio.open_connection(host, int(port))
        self._open |= {writer, to_broker}
        await asyncio.gather(_pump(reader, to_broker), _pump(from_broker, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:  # dropped
        pass
    finally:
        writer.close()
