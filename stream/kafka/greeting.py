"""A look at the brokers before a client is made: whether they speak what the configuration says, and take the login.

The client itself tries for a while and then tells of a timeout, whatever the reason was. Here each reason is found in
one round of TLS, ApiVersions, SaslHandshake and SaslAuthenticate (the first versions of each, which all brokers know).
"""

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from kafka.net.sasl import get_sasl_mechanism

from schemas.config import Kafka
from stream.kafka.tls import secret, tls_context
from stream.service.failure import Failure

TIMEOUT_S = 5.0
"""How long one broker has for each step."""

MOST_BYTES = 1 << 20
"""A longer answer to so short a question is not Kafka's."""

_API_VERSIONS, _SASL_HANDSHAKE, _SASL_AUTHENTICATE = 18, 17, 36
_NONE, _UNSUPPORTED_MECHANISM, _ILLEGAL_STATE = 0, 33, 34
_TLS_ALERT, _TLS_MAJOR = 0x15, 0x03
_EXPIRED, _OTHER_HOST = {9, 10}, {62, 64}  # OpenSSL's X509_V_ERR_*: not valid yet or any more, name, address


class NoBrokerError(Failure):
    """No broker answers: whoever has begun waits and asks again."""


class _Silent(Exception):  # noqa: N818  not an error: the client finds out itself
    """A broker can't be reached, or hung up without a word."""


def greet(kafka: Kafka, doing: str) -> None:
    """Raise what a client could only tell as a timeout; return where one broker is fine, or none can be reached.

    Args:
        kafka: Brokers and security.
        doing: What is about to be done, for the sentence.

    Raises:
        NoBrokerError: Brokers hang up, as those do that are asked in another protocol, or that are starting.
        Failure: Brokers refuse: certificates, protocol, mechanism or login. Or a file can't be used.
    """
    context = tls_context(kafka)
    refused: Failure | None = None
    for server in kafka.servers:
        try:
            _greet(kafka, server, context)
            return
        except _Silent:
            continue
        except Failure as error:
            refused = type(error)(f"{doing}: {error}")
    if refused is not None:
        raise refused


def _greet(kafka: Kafka, server: str, context: ssl.SSLContext | None) -> None:
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    try:
        connection: socket.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
    except (OSError, ValueError):
        raise _Silent from None
    with connection:
        if context is not None:
            connection = _secured(connection, context, host, server)
        with connection, _answering(kafka, server):
            _ask(connection, _API_VERSIONS, b"", server)
            _sasl(kafka, connection, server)


def _secured(connection: socket.socket, context: ssl.SSLContext, host: str, server: str) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _EXPIRED:
            raise Failure(
                f"the certificate of {server} has expired or isn't valid yet; renew it, and check this machine's clock"
            ) from None
        if error.verify_code in _OTHER_HOST:
            raise Failure(
                f"the certificate of {server} is for another host ({error.verify_message.rstrip('.')}); name the "
                "brokers in kafka.bootstrap as their certificates do"
            ) from None
        raise Failure(
            f"the certificate of {server} is not trusted ({error.verify_message}); kafka.ssl_cafile must hold the "
            "authority that signed it"
        ) from None
    except TimeoutError:
        raise _Silent from None
    except OSError:
        raise NoBrokerError(
            f"{server} hangs up when TLS is spoken; check kafka.security_protocol and the port in kafka.bootstrap"
        ) from None


@contextmanager
def _answering(kafka: Kafka, server: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise _Silent from None
    except ssl.SSLError:  # with TLS 1.3 the broker's word on our certificate comes after the handshake
        whose = (
            "the certificate of kafka.ssl_certfile" if kafka.ssl_certfile else "clients without a certificate"
        )
        raise Failure(
            f"{server} refuses {whose}; kafka.ssl_certfile and kafka.ssl_keyfile must hold one that it trusts"
        ) from None
    except OSError:
        raise NoBrokerError(
            f"{server} hangs up; check kafka.security_protocol ({kafka.security_protocol}) and the port in kafka.bootstrap"
        ) from None


def _sasl(kafka: Kafka, connection: socket.socket, server: str) -> None:
    if kafka.api_version is not None and not kafka.uses_sasl:
        return  # the demo's broker doesn't know the question
    mechanism = kafka.sasl_mechanism or "PLAIN"
    answer = _ask(connection, _SASL_HANDSHAKE, _string(mechanism), server, version=1)
    (code,) = struct.unpack_from(">h", answer)
    if not kafka.uses_sasl:
        if code != _ILLEGAL_STATE:
            raise Failure(
                f"{server} wants a login: set kafka.security_protocol to SASL_{kafka.security_protocol} "
                "and the kafka.sasl_ keys"
            )
        return
    if code == _UNSUPPORTED_MECHANISM:
        raise Failure(
            f"{server} doesn't take kafka.sasl_mechanism {mechanism}, it takes {', '.join(_strings(answer)) or 'none'}"
        )
    if code != _NONE:
        plain = kafka.security_protocol.removeprefix("SASL_")
        raise Failure(
            f"{server} takes no login: set kafka.security_protocol to {plain}, or use the port of its logins"
        )
    _log_in(kafka, connection, mechanism, server)


def _log_in(kafka: Kafka, connection: socket.socket, mechanism: str, server: str) -> None:
    login = get_sasl_mechanism(mechanism)(
        host=server,
        sasl_mechanism=mechanism,
        sasl_plain_username=kafka.sasl_username,
        sasl_plain_password=secret("sasl_password", kafka.sasl_password, kafka.sasl_password_file),
    )
    refused = Failure(
        f"{server} refused the login of {kafka.sasl_username}; check kafka.sasl_username and kafka.sasl_password"
    )
    while not login.is_done():
        token = login.auth_bytes()
        answer = _ask(
            connection, _SASL_AUTHENTICATE, struct.pack(f">i{len(token)}s", len(token), token), server
        )
        code, told = struct.unpack_from(">hh", answer)
        if code != _NONE:
            raise refused
        (size,) = struct.unpack_from(">i", answer, 4 + max(told, 0))
        start = 8 + max(told, 0)
        try:
            login.receive(answer[start : start + size])
        except Exception:  # noqa: BLE001  whatever the mechanism says about a broker that doesn't know the password
            raise refused from None


def _ask(connection: socket.socket, api: int, body: bytes, server: str, *, version: int = 0) -> bytes:
    """One request and the body of its answer."""
    request = struct.pack(">hhi", api, version, 1) + _string("freshet") + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    head = _exactly(connection, 4)
    if head[0] == _TLS_ALERT and head[1] == _TLS_MAJOR:
        raise Failure(
            f"{server} speaks TLS: set kafka.security_protocol to SSL, or to SASL_SSL where it wants a login"
        )
    (size,) = struct.unpack(">i", head)
    if not 4 <= size <= MOST_BYTES:
        raise Failure(f"{server} doesn't speak Kafka; check kafka.bootstrap")
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
    found, at = [], 6
    for _ in range(count):
        (size,) = struct.unpack_from(">h", answer, at)
        found.append(answer[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return found
