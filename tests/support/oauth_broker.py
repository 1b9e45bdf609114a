"""A real Apache Kafka that takes OAUTHBEARER, and a service that signs its tokens."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, unquote_plus

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from kafka_broker import broker, free_addresses

ISSUER, AUDIENCE, USER = "https://login.example.org", "kafka", "freshet"
CLIENT, SECRET = "stream", "c4nary-cl1ent:s3cret"
SESSION_MS = 4_000
"""Brokers want another login after so long."""

_MODULE = "org.apache.kafka.common.security.oauthbearer"
_LISTENERS = {
    "CONTROLLER": "PLAINTEXT",
    "PLAIN": "PLAINTEXT",
    "UNSECURED": "SASL_PLAINTEXT",
    "SIGNED": "SASL_PLAINTEXT",
}


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _part(content: dict[str, Any]) -> str:
    return _base64(json.dumps(content).encode())


def unsecured(life_s: float = 60, subject: str = USER) -> str:
    """A token that nobody has signed, as Kafka's own validator for development takes it."""
    now = time.time()
    claims = {"sub": subject, "iat": now, "exp": now + life_s}
    return f"{_part({'alg': 'none'})}.{_part(claims)}."


@dataclass
class TokenService:
    """A token endpoint and the keys by which brokers check its tokens.

    Attributes:
        life_s: Of its tokens.
        claims: Further claims.
        status: Answers this to requests for tokens; None: as it should.
        silent: Set: they get no answer.
        forms: Of the requests for tokens.
        stranger: Whether it signs with a key that brokers do not know.
    """

    life_s: float = 60
    claims: dict[str, Any] = field(default_factory=dict)
    status: int | None = None
    silent: bool = False
    stranger: bool = False
    forms: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self._key, self._other = (rsa.generate_private_key(65537, 2048) for _ in range(2))
        self.over = Event()

    def reset(self) -> None:
        """As at the begin."""
        self.life_s, self.claims, self.status, self.silent, self.stranger = 60, {}, None, False, False
        self.forms.clear()

    def token(self) -> str:
        """A signed token."""
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": USER,
            "iat": now,
            "exp": now + self.life_s,
        } | self.claims
        signed = f"{_part({'alg': 'RS256', 'kid': 'one'})}.{_part(claims)}"
        key = self._other if self.stranger else self._key
        return f"{signed}.{_base64(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def keys(self) -> dict[str, Any]:
        """The JSON Web Key Set."""
        numbers = self._key.public_key().public_numbers()
        n, e = (_base64(number.to_bytes((number.bit_length() + 7) // 8)) for number in (numbers.n, numbers.e))
        return {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "one", "n": n, "e": e}]}

    def answer(self, form: dict[str, str], login: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON for a request for a token."""
        self.forms.append(form)
        if self.silent:
            self.over.wait(30)
        if self.status is not None:
            return self.status, {"error": "temporarily_unavailable"}
        name, _, secret = base64.b64decode(login.removeprefix("Basic ")).decode().partition(":")
        if (unquote_plus(name), unquote_plus(secret)) != (CLIENT, SECRET) or form[
            "grant_type"
        ] != "client_credentials":
            return 401, {"error": "invalid_client", "error_description": "unknown client\nor wrong secret."}
        return 200, {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.life_s}


@dataclass(frozen=True, slots=True)
class OAuthBroker:
    """Addresses by listener (PLAIN, UNSECURED, SIGNED), and the service that signs."""

    addresses: dict[str, str]
    service: TokenService

    def login(self, listener: str = "SIGNED", **oauth: Any) -> dict[str, Any]:
        """Keys of the section ``kafka``; by default with client credentials."""
        client = {"token_endpoint": f"{self.service.url}/token", "client_id": CLIENT, "client_secret": SECRET}
        return {
            "bootstrap": self.addresses[listener],
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth": oauth or client,
        }


def _serve(service: TokenService) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(200, service.keys())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {key: values[0] for key, values in parse_qs(body).items()}
            self._say(*service.answer(form, self.headers["Authorization"] or ""))

        def _say(self, status: int, content: dict[str, Any]) -> None:
            raw = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            with suppress(ConnectionError):  # the client may not wait
                self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="session")
def oauth_broker(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OAuthBroker]:
    """A broker of its own, which wants another login every few seconds."""
    data, service = str(tmp_path_factory.mktemp("oauth") / "kafka"), TokenService()
    server = _serve(service)
    addresses = free_addresses(list(_LISTENERS))
    signed = "listener.name.signed"
    properties = {
        "listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
        "advertised.listeners": ",".join(
            f"{name}://{address}" for name, address in addresses.items() if name != "CONTROLLER"
        ),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in _LISTENERS.items()),
        "controller.quorum.voters": f"1@{addresses['CONTROLLER']}",
        "inter.broker.listener.name": "PLAIN",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "connections.max.reauth.ms": str(SESSION_MS),
        f"{signed}.oauthbearer.sasl.server.callback.handler.class": f"{_MODULE}.OAuthBearerValidatorCallbackHandler",
        f"{signed}.sasl.oauthbearer.jwks.endpoint.url": f"{service.url}/keys",
        f"{signed}.sasl.oauthbearer.expected.issuer": ISSUER,
        f"{signed}.sasl.oauthbearer.expected.audience": AUDIENCE,
    }
    for name in ("unsecured", "signed"):
        key = f"listener.name.{name}.oauthbearer.sasl.jaas.config"
        properties[key] = f"{_MODULE}.OAuthBearerLoginModule required;"
    java = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={service.url}/keys"
    broker(
        "start",
        "--data",
        data,
        *(f"--property={key}={value}" for key, value in properties.items()),
        java=java,
    )
    try:
        yield OAuthBroker(addresses, service)
    finally:
        service.over.set()
        broker("stop", "--data", data)
        server.shutdown()
        server.server_close()
