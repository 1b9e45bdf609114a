"""Logins at brokers: passwords, tokens of OAuth and credentials of AWS, as settings of Kafka's clients."""

import base64
import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, ClassVar, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote_plus, urlencode

import structlog
from kafka.errors import KafkaConnectionError
from kafka.net.sasl.oauth import AbstractTokenProvider
from typing_extensions import override

from freshet_graph.schemas.config import Kafka, SaslOAuth
from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import US_PER_S, show_time
from freshet_graph.schemas.section import Section
from freshet_graph.stream.kafka.tls import CredentialError, LoginRefusedError, secret
from freshet_graph.stream.optional import package
from freshet_graph.stream.registry import Registry, require_members
from freshet_graph.stream.service.failure import Failure

RENEW_AT = 0.75
"""Share of a token's life after which another is asked for. Clients log in again at 0.85 to 0.95 of a session."""

SOON_S = 1.0
"""How long a login waits for a newer token while the last one is valid: other connections wait with it."""

AGAIN_S = 2.0
"""Pause after a request for a token that failed."""

ANSWER_BYTES = 1 << 20
"""A longer answer holds no token."""

_log = structlog.get_logger()


class TokenProvider(Protocol):
    """A class of another package that gets tokens, named by ``kafka.sasl_oauth.provider``."""

    name: ClassVar[str]
    Options: ClassVar[type[Section]]

    def __init__(self, options: Any) -> None:
        """Take ``kafka.sasl_oauth.params``, filled in and checked."""
        ...

    def token(self) -> str:
        """A valid token. Called from several threads, never two at a time; an exception is shown and tried again."""
        ...


TOKEN_PROVIDERS: Registry[type[TokenProvider]] = Registry(
    "token provider",
    "kafka.sasl_oauth.params",
    "freshet.tokens",
    (),
    error=Failure,
    check=lambda candidate: require_members(candidate, TokenProvider, "token provider"),
)


def login_settings(kafka: Kafka) -> dict[str, Any]:
    """Settings of the login for kafka-python's clients; empty without one.

    Raises:
        CredentialError: The file of a password can't be used.
        Failure: The token provider is unknown or can't be made.
    """
    if not kafka.uses_sasl:
        return {}
    settings: dict[str, Any] = {"sasl_mechanism": kafka.sasl_mechanism}
    if kafka.sasl_oauth is not None:
        settings["sasl_oauth_token_provider"] = _ForClients(kafka.sasl_oauth)
    elif kafka.sasl_mechanism != "AWS_MSK_IAM":
        settings["sasl_plain_username"] = kafka.sasl_username
        settings["sasl_plain_password"] = secret(
            "sasl_password", kafka.sasl_password, kafka.sasl_password_file
        )
    return settings


def require_login(kafka: Kafka) -> None:
    """Get what a login needs before brokers are asked, because clients would report a timeout.

    Raises:
        CredentialError: There is no token, or no credentials of AWS; the sentence says where they should come from.
        Failure: A library is missing, or the token provider is unknown.
    """
    if kafka.sasl_oauth is not None:
        tokens_of(kafka.sasl_oauth).token()
    elif kafka.sasl_mechanism == "AWS_MSK_IAM":
        _require_aws()


def refusal(kafka: Kafka) -> str:
    """The sentences about a login that a broker has refused, after its address."""
    if kafka.sasl_oauth is not None:
        tokens = tokens_of(kafka.sasl_oauth)
        return f"refused the token of {tokens.place}{_described(tokens.last)}"
    if kafka.sasl_mechanism == "AWS_MSK_IAM":
        return (
            "refused the credentials of AWS. Check which ones the environment gives (AWS_PROFILE, AWS_ACCESS_KEY_ID, or a role), "
            "and that their policy allows kafka-cluster:Connect"
        )
    return f"refused the login of {kafka.sasl_username}. Check kafka.sasl_username and kafka.sasl_password"


class Tokens:
    """Tokens of one source for all connections of this process.

    Each is used until it expires, and another is asked for earlier, on a thread of its own. So a source that is away for a
    while, or slow, does not matter to connections while the last token is valid.

    Args:
        place: Where they come from, for sentences: a key and its value.
        get: Gets a token, and the seconds for which it is valid; 0: it is used for one login.
        timeout_s: How long a login waits for the first.

    Attributes:
        last: The newest token; empty before the first.
    """

    def __init__(self, place: str, get: Callable[[], tuple[str, float]], timeout_s: float) -> None:
        self.place, self.last = place, ""
        self._get, self._timeout_s = get, timeout_s
        self._renew_s = self._until_s = self._again_s = 0.0
        self._error: Failure | None = None
        self._renewal: threading.Thread | None = None
        self._lock = threading.Lock()

    def token(self) -> str:
        """A valid token.

        Raises:
            CredentialError: The source gives none.
            Failure: As the source says.
        """
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._renew_s:
                return self.last
            idle = self._renewal is None or not self._renewal.is_alive()
            if idle and now_s >= self._again_s:
                self._renewal = threading.Thread(target=self._renew, name="token", daemon=True)
                self._renewal.start()
            renewal = self._renewal
        if renewal is not None:
            renewal.join(SOON_S if now_s < self._until_s else self._timeout_s)
        if time.monotonic() < self._until_s:
            return self.last
        if self._error is not None:
            raise type(self._error)(str(self._error))
        raise CredentialError(f"{self.place} gives no token within {self._timeout_s:g} s. It is asked again")

    def _renew(self) -> None:
        try:
            token, valid_s = self._get()
        except Exception as error:  # noqa: BLE001  providers of other packages may raise anything
            failure = (
                error if isinstance(error, Failure) else CredentialError(f"{self.place}: {one_line(error)}")
            )
            if self._error is None and self.last:
                _log.warning("no new token", error=str(failure))
            self._error, self._again_s = failure, time.monotonic() + AGAIN_S
            return
        if self._error is not None:
            _log.info("tokens are renewed again", source=self.place)
        now_s = time.monotonic()
        self.last, self._error = token, None
        self._until_s, self._renew_s = now_s + max(valid_s, SOON_S), now_s + RENEW_AT * valid_s


_sources: list[tuple[SaslOAuth, Tokens]] = []
_sources_lock = threading.Lock()


def tokens_of(oauth: SaslOAuth) -> Tokens:
    """The tokens of a section, the same ones at every call.

    Raises:
        Failure: The provider is unknown or can't be made.
    """
    with _sources_lock:
        for known, tokens in _sources:
            if known == oauth:
                return tokens
        _sources.append((oauth, _source(oauth)))
        return _sources[-1][1]


def _source(oauth: SaslOAuth) -> Tokens:
    if oauth.token_endpoint is not None:
        place = f"kafka.sasl_oauth.token_endpoint {oauth.token_endpoint}"
        return Tokens(place, lambda: _from_endpoint(oauth, place), oauth.timeout_s + SOON_S)
    if oauth.token_file is not None:
        file = oauth.token_file
        place = f"kafka.sasl_oauth.token_file {file}"
        return Tokens(
            place, lambda: (_one_token(secret("sasl_oauth.token", None, file), place), 0.0), oauth.timeout_s
        )
    name = str(oauth.provider)
    place = f"kafka.sasl_oauth.provider {name}"
    options = TOKEN_PROVIDERS.options(name, oauth.params)
    provider = TOKEN_PROVIDERS.find(name)(options)
    return Tokens(place, lambda: (_one_token(provider.token(), place), 0.0), oauth.timeout_s)


class _ForClients(AbstractTokenProvider):  # type: ignore[misc]  # the client has no types
    """Kafka's client asks it at every login, in the thread of its connections."""

    def __init__(self, oauth: SaslOAuth) -> None:
        super().__init__()
        self._tokens, self._extensions = tokens_of(oauth), oauth.extensions

    @override
    def token(self) -> str:
        try:
            return self._tokens.token()
        except (
            Failure
        ) as error:  # the client tries again after errors of its own; the next greeting has the sentence
            raise KafkaConnectionError(str(error)) from error

    @override
    def extensions(self) -> dict[str, str]:
        return self._extensions


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """A redirection would take the client's secret along."""

    @override
    def redirect_request(self, *_: Any) -> None:
        return None


def _from_endpoint(oauth: SaslOAuth, place: str) -> tuple[str, float]:
    """A token by RFC 6749, section 4.4, and the seconds for which it is valid."""
    client_secret = secret("sasl_oauth.client_secret", oauth.client_secret, oauth.client_secret_file)
    login = f"{quote_plus(str(oauth.client_id))}:{quote_plus(str(client_secret))}"
    form = {
        "grant_type": "client_credentials",
        **({"scope": oauth.scope} if oauth.scope else {}),
        **oauth.parameters,
    }
    headers = {
        "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}",
        "Accept": "application/json",
    }
    request = urllib.request.Request(str(oauth.token_endpoint), urlencode(form).encode(), headers)  # noqa: S310  http or https, by SaslOAuth
    try:
        context = ssl.create_default_context(cafile=oauth.ssl_cafile)
    except OSError as error:
        raise CredentialError(
            f"kafka.sasl_oauth.ssl_cafile: {oauth.ssl_cafile} can't be used: {error.strerror or error}"
        ) from error
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirection())
    try:
        with opener.open(request, timeout=oauth.timeout_s) as answer:
            content = _object(answer.read(ANSWER_BYTES))
    except HTTPError as error:
        raise _refused(oauth, place, error.code, _object(error.read(ANSWER_BYTES))) from None
    except (OSError, HTTPException) as error:
        reason = (
            error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
        )
        raise CredentialError(
            f"{place} does not answer: {one_line(reason)}. Check that address and the network"
        ) from None
    token = _one_token(content.get("access_token"), place)
    try:
        valid_s = float(content["expires_in"])
    except (KeyError, TypeError, ValueError):
        valid_s = float(_claims(token).get("exp") or 0) - time.time()
    return token, max(0.0, valid_s)


def _refused(oauth: SaslOAuth, place: str, status: int, content: dict[str, Any]) -> Failure:
    words = [str(content[key]) for key in ("error", "error_description") if key in content]
    why = " ".join(": ".join(words).split())[:300].rstrip(".")
    said = f"HTTP {status}{', ' if why else ''}{why}"
    if status in (400, 401, 403):
        return LoginRefusedError(
            f"{place} refuses the client {oauth.client_id} ({said}). Check kafka.sasl_oauth.client_id, client_secret and scope"
        )
    remedy = "It is asked again" if status >= 500 or status == 429 else "Check that address"
    return CredentialError(f"{place} gives no token ({said}). {remedy}")


def _one_token(token: Any, place: str) -> str:
    """A token as RFC 6750 writes it.

    Raises:
        CredentialError: It is none; it is not shown.
    """
    text = token.strip() if isinstance(token, str) else ""
    if not text or not text.isascii() or any(not 32 < ord(letter) < 127 for letter in text):
        raise CredentialError(f"{place} gives no token: expected one word of ASCII. Check what it gives")
    return text


def _object(raw: bytes) -> dict[str, Any]:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _claims(token: str) -> dict[str, Any]:
    """The claims of a JSON Web Token, unchecked; empty for another kind of token."""
    part = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        return _object(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except ValueError:
        return {}


def _described(token: str) -> str:
    """What is known of a refused token, and the remedy."""
    claims = _claims(token)
    expires_s = claims.get("exp")
    if isinstance(expires_s, (int, float)) and expires_s <= time.time():
        return f", which expired at {show_time(int(expires_s * US_PER_S))}. Have it renewed, and check this machine's clock"
    names = {"iss": "issuer", "aud": "audience", "sub": "subject"}
    said = [f"{name} {json.dumps(claims[key])}" for key, name in names.items() if key in claims]
    about = f" ({', '.join(said)})" if said else ""
    return f"{about}. Check what the brokers expect of tokens, and kafka.sasl_oauth"


def _require_aws() -> None:
    session_module = package(
        "botocore.session", "kafka.sasl_mechanism AWS_MSK_IAM", "'freshet-graph[aws-profiles]'"
    )
    from botocore.exceptions import BotoCoreError  # of the same library

    try:
        session = session_module.Session()
        credentials, region = session.get_credentials(), session.get_config_variable("region")
        if credentials is not None:
            credentials.get_frozen_credentials()
    except BotoCoreError as error:
        raise CredentialError(
            f"kafka.sasl_mechanism AWS_MSK_IAM: {one_line(error)}. Check the AWS_ variables"
        ) from error
    if credentials is None:
        raise CredentialError(
            "kafka.sasl_mechanism AWS_MSK_IAM: the environment gives no credentials of AWS. Set AWS_PROFILE, or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a role gives them"
        )
    if not region:
        raise CredentialError(
            "kafka.sasl_mechanism AWS_MSK_IAM: the region of the cluster is unknown. Set AWS_DEFAULT_REGION, such as eu-central-1"
        )
