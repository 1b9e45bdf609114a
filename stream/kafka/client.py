"""Settings that every Kafka client of this package shares, and Kafka's errors as sentences that name the key to change."""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from kafka import KafkaConsumer
from kafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from typing_extensions import override

from freshet_graph.schemas.config import Kafka
from freshet_graph.stream.kafka.greeting import NoBrokerError, files_left
from freshet_graph.stream.kafka.logins import login_settings
from freshet_graph.stream.kafka.tls import LoginRefusedError, tls_context
from freshet_graph.stream.service.failure import Failure

__all__ = ["NoBrokerError", "client_settings", "connected", "kafka_failures"]

REQUEST_TIMEOUT_MS = 30_000
BOOTSTRAP_TIMEOUT_MS = 15_000
"""How long a client tries to reach a broker."""
RECONNECT_MAX_MS = 2_000
"""Longest pause between two tries to connect, and so the longest delay after an outage."""

WRITING = {"acks": "all", "linger_ms": 20, "max_request_size": 32 << 20, "metrics_enabled": False}
"""Settings of all producers."""

IN_ORDER = {"enable_idempotence": True, "batch_size": 1 << 19}
"""Further settings of producers of long files: retries neither reorder nor repeat."""


def client_settings(kafka: Kafka) -> dict[str, Any]:
    """Connection and security settings for kafka-python's consumer, producer and admin client.

    Raises:
        Failure: A file of a certificate, key or password can't be used.
    """
    settings: dict[str, Any] = {
        "bootstrap_servers": kafka.servers,
        "client_id": "freshet",
        "security_protocol": kafka.security_protocol,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
        "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
        "reconnect_backoff_max_ms": RECONNECT_MAX_MS,
    }
    if kafka.api_version is not None:
        settings["api_version"] = tuple(kafka.api_version)
    context = tls_context(kafka)
    if context is not None:
        settings["ssl_context"] = context
    return settings | login_settings(kafka)


Client = TypeVar("Client")


def connected(kind: Callable[..., Client], settings: Mapping[str, Any]) -> Client:
    """A client that has reached a broker; one that reaches none is closed.

    kafka-python leaves the thread and the sockets of a client open if its constructor fails, which would add up over
    an outage.

    Raises:
        KafkaError: No broker answers, or it refuses.
        NoBrokerError: This process has as many files open as it may.
    """
    opened: list[KafkaNetClient] = []

    def net_client(**given: Any) -> KafkaNetClient:
        opened.append(settings.get("kafka_client", KafkaNetClient)(**given))
        return opened[-1]

    try:
        with files_left(",".join(settings["bootstrap_servers"])):
            try:
                return kind(**{**settings, "kafka_client": net_client})
            except KafkaError:
                socket.socket().close()  # the client conceals why it could not open one
                raise
    except BaseException:
        for net in opened:
            net.close()
        raise


@contextmanager
def kafka_failures(bootstrap: str, doing: str, right: str = "Describe") -> Iterator[None]:
    """Turn a Kafka client's errors into a Failure that says what was tried and which key to check.

    Args:
        bootstrap: The brokers' addresses.
        doing: What was tried, such as "reading topic edges".
        right: The operation on topics that the user needs for it, as Kafka's ACLs name it.

    Raises:
        NoBrokerError: No broker answers.
        LoginRefusedError: See there.
        Failure: Any other error of the client.
    """
    try:
        yield
    except SaslAuthenticationFailedError as error:
        raise LoginRefusedError(
            f"{doing}: the broker at {bootstrap} refused the login. Check kafka.sasl_mechanism and the keys of its login "
            "(kafka.sasl_username and kafka.sasl_password, or kafka.sasl_oauth)"
        ) from error
    except TopicAuthorizationFailedError as error:
        topics = error.args[0] if error.args else []
        named = ", ".join(sorted([topics] if isinstance(topics, str) else topics)) or "its topic"
        raise _missing_right(doing, bootstrap, f"{right} on topic {named}") from error
    except GroupAuthorizationFailedError as error:
        raise _missing_right(doing, bootstrap, "Read on the group (kafka.group)") from error
    except ClusterAuthorizationFailedError as error:
        raise _missing_right(doing, bootstrap, f"{right} on the cluster") from error
    except (KafkaConnectionError, KafkaTimeoutError) as error:
        raise NoBrokerError(
            f"{doing}: no broker answers at {bootstrap} ({_text(error)}). Check the brokers and kafka.bootstrap"
        ) from error
    except UnknownTopicOrPartitionError as error:
        raise Failure(
            f"{doing}: the topic doesn't exist at {bootstrap}. Create it or correct its name"
        ) from error
    except KafkaError as error:
        raise Failure(f"{doing} at {bootstrap}: {_text(error)}") from error


def _missing_right(doing: str, bootstrap: str, right: str) -> Failure:
    return Failure(
        f"{doing}: at {bootstrap} the stream's user (kafka.sasl_username, or that of its certificate) has no right {right}. "
        "Give it the right in the cluster"
    )


def _text(error: KafkaError) -> str:
    text = " ".join(str(error).split())
    name = type(error).__name__
    return text if text.startswith(name) or not text else f"{name}: {text}"


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
