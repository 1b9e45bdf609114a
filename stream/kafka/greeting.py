"""A look at the brokers before a client is made: do they answer, speak the configured protocol, and accept the login?

The client itself tries for a while and then reports a timeout, whatever the reason. Here each reason is found in one
round of TLS, ApiVersions, SaslHandshake, SaslAuthenticate and Metadata (early versions, which all brokers know). The
addresses of the last answer are those that the client will use, so one of them must answer, too.
"""

import errno
import os
import queue
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kafka.net.sasl import get_sasl_mechanism

from freshet_graph.schemas.config import Kafka
from freshet_graph.schemas.errors import one_line, system_call
from freshet_graph.stream.kafka.logins import login_settings, refusal, require_login
from freshet_graph.stream.kafka.tls import CredentialError, LoginRefusedError, tls_context
from freshet_graph.stream.service.failure import Failure

PATIENCE_S = 5.0
"""How long brokers have to answer. With its start a command reports silent brokers within 10 s."""

AGAIN_S = 0.3
"""Pause before an unresolved name or a refused port is tried again: brokers may be starting."""

MOST_BYTES = 1 << 20
"""A longer answer to so short a request is not Kafka's."""

_SAYS_NOTHING = "it accepts the connection and does not answer"

_METADATA, _API_VERSIONS, _SASL_HANDSHAKE, _SASL_AUTHENTICATE = 3, 18, 17, 36
_NONE, _UNSUPPORTED_MECHANISM, _ILLEGAL_STATE = 0, 33, 34
_TLS_ALERT, _TLS_MAJOR = 0x15, 0x03
_EXPIRED, _OTHER_HOST = {9, 10}, {62, 64}  # OpenSSL's X509_V_ERR_*: not valid yet or any more, name, address


class NoBrokerError(Failure):
    """No broker answers: a job that has begun waits and asks again."""


@contextmanager
def files_left(server: str) -> Iterator[None]:
    """Name the limit of open files if connecting to a broker fails at it: it is not the broker's fault.

    Raises:
        NoBrokerError: The limit is reached.
    """
    try:
        with system_call("socket", server):
            yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise NoBrokerError(one_line(error)) from error
        raise


class _Silent(Exception):  # noqa: N818  another broker may answer
    """A broker can't be reached, or doesn't answer; the text says which."""


class _NotYet(_Silent):
    """The next try may succeed, because brokers may be starting."""


def greet(kafka: Kafka, doing: str) -> None:
    """Return once one broker has answered well; raise what a client would only report as a timeout.

    All brokers are asked at once, so that one that is away delays nothing. If the one that answers gives clients other
    addresses than its own, one of those must answer as well.

    Args:
        kafka: Brokers and security.
        doing: What is about to be done, for the sentence.

    Raises:
        NoBrokerError: None answers within ``PATIENCE_S``, with the reason. Or brokers hang up, as they do if they are
            asked in another protocol, or are starting.
        CredentialError: A file can't be used, a certificate is refused on either side, or a login; or there is no token.
        Failure: Brokers refuse protocol or mechanism.
    """
    context = tls_context(kafka)
    try:
        require_login(kafka)
        server, advertised = _first(kafka, kafka.servers, context)
    except _Silent as silent:
        protocol = " and kafka.security_protocol" if _SAYS_NOTHING in str(silent) else ""
        raise NoBrokerError(
            f"no broker answers at {silent}. Check the address (kafka.bootstrap or --bootstrap){protocol}"
        ) from None
    except Failure as refused:
        raise type(refused)(f"{doing}: {refused}") from None
    if not advertised or server in advertised:
        return
    try:
        _first(kafka, advertised, context)
    except _Silent as silent:
        raise NoBrokerError(
            f"{doing}: {server} answers, but advertises {silent}. Correct advertised.listeners of the broker, or make that "
            "address reachable from here"
        ) from None
    except Failure as refused:
        raise type(refused)(f"{doing}: {server} advertises other addresses: {refused}") from None


def _first(kafka: Kafka, servers: Sequence[str], context: ssl.SSLContext | None) -> tuple[str, list[str]]:
    """The first of several brokers that answers well, and the addresses that it advertises.

    Raises:
        _Silent: None answers; the text has each address with its reason.
        Failure: One refuses.
    """
    until_s = time.monotonic() + PATIENCE_S
    answers: queue.SimpleQueue[tuple[str, list[str]] | Exception] = queue.SimpleQueue()
    silent = dict.fromkeys(servers, f"its name does not resolve within {PATIENCE_S:g} s")
    for server in servers:  # only a thread can be left while it resolves a name
        arguments = (kafka, server, context, until_s, silent, answers)
        threading.Thread(target=_try, args=arguments, name="greeting", daemon=True).start()
    refused: Failure | None = None
    for _ in servers:
        try:
            answer = answers.get(timeout=max(0.0, until_s - time.monotonic()) + AGAIN_S)
        except queue.Empty:
            break
        if not isinstance(answer, Exception):
            return answer
        if isinstance(answer, Failure):
            refused = answer
        elif not isinstance(answer, _Silent):
            raise answer
    if refused is not None:
        raise refused
    raise _Silent(", ".join(f"{server} ({why})" for server, why in silent.items()))


def _try(
    kafka: Kafka,
    server: str,
    context: ssl.SSLContext | None,
    until_s: float,
    silent: dict[str, str],
    answers: "queue.SimpleQueue[tuple[str, list[str]] | Exception]",
) -> None:
    """Greet one broker, again while it may be starting, and put the result into ``answers``."""
    while True:
        try:
            answers.put((server, _greet(kafka, server, context, until_s, silent)))
        except _Silent as error:
            silent[server] = str(error)
            if isinstance(error, _NotYet) and time.monotonic() + AGAIN_S < until_s:
                time.sleep(AGAIN_S)
                continue
            answers.put(error)
        except Exception as error:  # noqa: BLE001  raised by the waiting thread
            answers.put(error)
        return


def _greet(
    kafka: Kafka, server: str, context: ssl.SSLContext | None, until_s: float, silent: dict[str, str]
) -> list[str]:
    """Ask one broker for the addresses that it advertises."""
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    try:
        socket.getaddrinfo(host, int(port))
        silent[server] = "it does not answer"
        left_s = max(AGAIN_S, until_s - time.monotonic())
        with files_left(server):
            connection: socket.socket = socket.create_connection((host, int(port)), timeout=left_s)
    except (socket.gaierror, ValueError):
        raise _NotYet(f"the name {host} does not resolve") from None
    except TimeoutError:
        raise _Silent("no connection in time") from None
    except OSError as error:
        raise _NotYet(os.strerror(error.errno).lower() if error.errno else str(error)) from None
    with connection:
        if context is not None:
            connection = _secured(connection, context, host, server)
        with connection, _answering(kafka, server):
            _ask(connection, _API_VERSIONS, b"", server)
            _sasl(kafka, connection, server, host)
            return _addresses(_ask(connection, _METADATA, struct.pack(">i", 0), server, version=1))


def _secured(connection: socket.socket, context: ssl.SSLContext, host: str, server: str) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _EXPIRED:
            raise CredentialError(
                f"the certificate of {server} has expired or isn't valid yet. Renew it, and check this machine's clock"
            ) from None
        if error.verify_code in _OTHER_HOST:
            raise CredentialError(
                f"the certificate of {server} is for another host ({error.verify_message.rstrip('.')}). Name the "
                "brokers in kafka.bootstrap as their certificates do"
            ) from None
        raise CredentialError(
            f"the certificate of {server} is not trusted ({error.verify_message}). Give the authority that signed it "
            "in kafka.ssl_cafile"
        ) from None
    except TimeoutError:
        raise _Silent(_SAYS_NOTHING) from None
    except OSError:
        raise NoBrokerError(
            f"{server} closed the connection when TLS began. Check kafka.security_protocol and the port in kafka.bootstrap"
        ) from None


@contextmanager
def _answering(kafka: Kafka, server: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise _Silent(_SAYS_NOTHING) from None
    except ssl.SSLError:  # with TLS 1.3 the broker's word on our certificate comes after the handshake
        whose = (
            "the certificate of kafka.ssl_certfile" if kafka.ssl_certfile else "clients without a certificate"
        )
        raise CredentialError(
            f"{server} refuses {whose}. Give one that it trusts in kafka.ssl_certfile and kafka.ssl_keyfile"
        ) from None
    except OSError:
        raise NoBrokerError(
            f"{server} closed the connection. Check kafka.security_protocol ({kafka.security_protocol}) and the port in "
            "kafka.bootstrap"
        ) from None


def _sasl(kafka: Kafka, connection: socket.socket, server: str, host: str) -> None:
    if kafka.api_version is not None and not kafka.uses_sasl:
        return  # the demo's broker doesn't know this request
    mechanism = kafka.sasl_mechanism or "PLAIN"
    answer = _ask(connection, _SASL_HANDSHAKE, _string(mechanism), server, version=1)
    (code,) = struct.unpack_from(">h", answer)
    if not kafka.uses_sasl:
        if code != _ILLEGAL_STATE:
            raise Failure(
                f"{server} requires a login. Set kafka.security_protocol to SASL_{kafka.security_protocol} "
                "and the kafka.sasl_ keys"
            )
        return
    if code == _UNSUPPORTED_MECHANISM:
        raise Failure(
            f"{server} doesn't accept kafka.sasl_mechanism {mechanism}. It accepts {', '.join(_strings(answer)) or 'none'}"
        )
    if code != _NONE:
        plain = kafka.security_protocol.removeprefix("SASL_")
        raise Failure(
            f"{server} accepts no login. Set kafka.security_protocol to {plain}, or use the port for logins"
        )
    _log_in(kafka, connection, mechanism, server, host)


def _log_in(kafka: Kafka, connection: socket.socket, mechanism: str, server: str, host: str) -> None:
    settings = login_settings(kafka)
    login = get_sasl_mechanism(mechanism)(host=host, security_protocol=kafka.security_protocol, **settings)
    refused = LoginRefusedError(f"{server} {refusal(kafka)}")
    while not login.is_done():
        token = login.auth_bytes()
        answer = _ask(
            connection, _SASL_AUTHENTICATE, struct.pack(f">i{len(token)}s", len(token), token), server
        )
        code, text_bytes = struct.unpack_from(">hh", answer)
        if code != _NONE:
            raise refused
        (size,) = struct.unpack_from(">i", answer, 4 + max(text_bytes, 0))
        start = 8 + max(text_bytes, 0)
        try:
            login.receive(answer[start : start + size])
        except Exception:  # noqa: BLE001  the mechanism's errors about a broker that doesn't know the password
            raise refused from None


def _ask(connection: socket.socket, api: int, body: bytes, server: str, *, version: int = 0) -> bytes:
    """One request and the body of its answer."""
    request = struct.pack(">hhi", api, version, 1) + _string("freshet") + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    head = _exactly(connection, 4)
    if head[0] == _TLS_ALERT and head[1] == _TLS_MAJOR:
        raise Failure(
            f"{server} speaks TLS. Set kafka.security_protocol to SSL, or to SASL_SSL if it requires a login"
        )
    (size,) = struct.unpack(">i", head)
    if not 4 <= size <= MOST_BYTES:
        raise Failure(f"{server} doesn't speak Kafka. Check kafka.bootstrap")
    return _exactly(connection, size)[4:]


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = connection.recv(size - len(received))
        if not more:
            raise ConnectionResetError
        received += more
    return received


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(f">h{len(raw)}s", len(raw), raw)


def _strings(answer: bytes) -> list[str]:
    """The array of strings after an error code."""
    (count,) = struct.unpack_from(">i", answer, 2)
    texts, offset = [], 6
    for _ in range(count):
        text, offset = _string_at(answer, offset)
        texts.append(text)
    return texts


def _addresses(answer: bytes) -> list[str]:
    """The brokers of a Metadata answer, version 1: number, host, port and rack of each."""
    (count,) = struct.unpack_from(">i", answer)
    addresses, offset = [], 4
    for _ in range(count):
        host, offset = _string_at(answer, offset + 4)
        (port,) = struct.unpack_from(">i", answer, offset)
        _, offset = _string_at(answer, offset + 4)
        addresses.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return addresses


def _string_at(answer: bytes, offset: int) -> tuple[str, int]:
    """A string, empty for null, and the position after it."""
    (size,) = struct.unpack_from(">h", answer, offset)
    end = offset + 2 + max(size, 0)
    return answer[offset + 2 : end].decode(), end
