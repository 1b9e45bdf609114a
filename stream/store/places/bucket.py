"""The operations on an S3 bucket that the store is built on, and the error sentences if one fails.

All but ``put`` are safe to repeat: after a lost answer, a conditional put recognises its own object by the content.
"""

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from freshet_graph.schemas.errors import system_call
from freshet_graph.schemas.store_address import Address, require_endpoint

if TYPE_CHECKING:
    from obstore.store import S3Store

T = TypeVar("T")

PAUSE_S = 0.1
"""Pause before the second try of a conditional put; each further one is twice as long, up to ``MAX_PAUSE_S``."""

MAX_PAUSE_S = 5.0

CONNECT_S, ANSWER_S, MOST_S = 5.0, 30.0, 600.0
"""Longest time of a request to connect, between two pieces of its answer, and in total (a large file on a slow line)."""

_NO_CREDENTIALS = re.compile(
    r"Missing ?(AccessKeyId|SecretAccessKey)|performing \w+ [^?\s]*/latest/(api/token|meta-data)|AssumeRoleWithWebIdentity"
)
"""Texts of the library if it found no credentials, or couldn't ask for a role's."""

_EXPIRED = {"ExpiredToken", "TokenRefreshRequired", "InvalidToken"}
"""Codes of services for expired credentials; most come with status 400."""

_REFUSED = {"401", "403"}

_PASSING = {"408", "409", "429"}
"""Refusals that may pass with another try."""

_STATUS = re.compile(r"status code: (\d{3})")


class ObjectStoreError(OSError):
    """A bucket refuses or does not answer; ``errno`` is ``EHOSTUNREACH`` if another try may succeed."""

    def __init__(self, sentence: str, number: int = errno.EACCES) -> None:
        super().__init__(sentence)
        self.errno = number


class StaleError(OSError):
    """An object has changed since it was looked at."""


@dataclass(frozen=True, slots=True)
class Found:
    """An existing object.

    Attributes:
        key: Its key.
        bytes: Its length.
        etag: Identifies its content.
    """

    key: str
    bytes: int
    etag: str
    modified_s: float


class Bucket:
    """One bucket, from one process; a forked process opens its own."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._opened: tuple[int, S3Store] | None = None

    def stat(self, key: str) -> Found:
        """The object under a key.

        Raises:
            FileNotFoundError: There is none.
            ObjectStoreError: The bucket refuses or does not answer.
        """
        import obstore

        def head(store: "S3Store") -> Any:
            try:
                return obstore.head(store, key)
            except ValueError:  # no object can have this key: it is from a damaged record
                raise FileNotFoundError(key) from None

        return _entry(self._do(head, key))

    def read(self, key: str) -> tuple[bytes, Found]:
        """A whole object, at one moment; raises as ``stat`` does."""
        import obstore

        def get(store: "S3Store") -> tuple[bytes, Found]:
            answer = obstore.get(store, key)
            return bytes(answer.bytes()), _entry(answer.meta)

        return self._do(get, key)

    def fetch(self, key: str, path: Path) -> None:
        """Copy an object into a new file of this machine; raises as ``stat`` does, and OSError if the disk refuses."""
        import obstore

        def get(store: "S3Store") -> None:
            with system_call("write", path), path.open("wb") as file:
                for piece in obstore.get(store, key).stream(1 << 22):
                    file.write(piece)

        self._do(get, key)

    def below(self, prefix: str) -> Iterator[Found]:
        """All objects whose keys begin with a prefix that ends in a slash, in the order of their keys."""
        import obstore

        pages = iter(self._do(lambda store: obstore.list(store, prefix, chunk_size=1000), prefix))
        while (page := self._do(lambda _: next(pages, None), prefix)) is not None:
            yield from map(_entry, page)

    def folder(self, prefix: str) -> tuple[list[str], list[Found]]:
        """Prefixes one step longer, and objects, directly under a prefix that ends in a slash."""
        import obstore

        listed = self._do(lambda store: obstore.list_with_delimiter(store, prefix), prefix)
        return list(listed["common_prefixes"]), [_entry(meta) for meta in listed["objects"]]

    def put(self, key: str, content: bytes | Path) -> None:
        """Put an object in place of any other, under a key that only one writer ever uses."""
        import obstore

        self._do(lambda store: obstore.put(store, key, content), key)

    def put_new(self, key: str, content: bytes) -> str:
        """Put an object under a free key; returns its ETag.

        Raises:
            FileExistsError: Another object has the key.
            ObjectStoreError: The bucket refuses or does not answer; the object may exist all the same.
        """
        return self._conditional(key, content, None)

    def replace(self, key: str, content: bytes, etag: str) -> str:
        """Replace the object that has an ETag; returns the new ETag.

        Raises:
            StaleError: The object was changed or removed.
            ObjectStoreError: The bucket refuses or does not answer; the object may be replaced all the same.
        """
        return self._conditional(key, content, etag)

    def remove(self, keys: list[str]) -> None:
        """Remove objects; missing ones are fine."""
        import obstore

        if keys:
            self._do(lambda store: obstore.delete(store, keys), keys[0])

    def _conditional(self, key: str, content: bytes, etag: str | None) -> str:
        """Put an object if the current one has an ETag; None: if there is none."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        mode: Any = "create" if etag is None else {"e_tag": etag}
        until_s, pause_s = time.monotonic() + self.address.retry_s, PAUSE_S
        while True:
            try:
                return str(obstore.put(self._store(), key, content, mode=mode)["e_tag"])
            except (AlreadyExistsError, PreconditionError, FileNotFoundError) as error:
                failure = self._failure(error, key)
                if failure.errno == errno.ENOENT:
                    raise failure from None
                if (done := self._ours(key, content, etag)) is not None:
                    return done
                failure = ObjectStoreError(
                    f"{self.address}/{key} is being put by other processes. Stop them, or try again",
                    errno.EHOSTUNREACH,
                )
            except (BaseError, PermissionError) as error:
                failure = self._failure(error, key)
                if failure.errno != errno.EHOSTUNREACH:
                    raise failure from None
            if time.monotonic() + pause_s > until_s:
                raise failure
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _ours(self, key: str, content: bytes, etag: str | None) -> str | None:
        """After a refused put, the object's ETag if it has our content: only the answer to the put was lost.

        Returns:
            None if nothing has changed: the put met another one at work and has to be tried again.

        Raises:
            FileExistsError, StaleError: It is another object.
        """
        try:
            stored, entry = self.read(key)
        except FileNotFoundError:
            if etag is None:
                return None
            raise StaleError(f"{self.address}/{key} was removed by another process") from None
        if stored == content:
            return entry.etag
        if etag is None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"{self.address}/{key}")
        if entry.etag == etag:
            return None
        raise StaleError(f"{self.address}/{key} was changed by another process")

    def _do(self, operation: Callable[["S3Store"], T], key: str) -> T:
        from obstore.exceptions import BaseError

        try:
            return operation(self._store())
        except FileNotFoundError as error:
            if _code(error) == "NoSuchBucket":
                raise self._failure(error, key) from None
            raise FileNotFoundError(
                errno.ENOENT, os.strerror(errno.ENOENT), f"{self.address}/{key}"
            ) from None
        except (BaseError, PermissionError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's, not the bucket's
            raise self._failure(error, key) from None

    def _store(self) -> "S3Store":
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = os.getpid(), self._open()
            return self._opened[1]

    def _open(self) -> "S3Store":
        from obstore.store import S3Store

        address = self.address
        given: dict[str, Any] = {"region": address.region, "endpoint": address.endpoint}
        endpoint = (
            address.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        )
        if endpoint is not None and address.endpoint is None:
            try:
                require_endpoint(endpoint)
            except ValueError as error:
                raise ObjectStoreError(f"AWS_ENDPOINT_URL: {error}", errno.EINVAL) from None
        return S3Store(
            address.bucket,
            **{key: value for key, value in given.items() if value is not None},
            credential_provider=_profile(),
            client_options={
                "allow_http": endpoint is not None and endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "read_timeout": timedelta(seconds=ANSWER_S),
                "timeout": timedelta(seconds=MOST_S),
            },
            retry_config={"max_retries": 1000, "retry_timeout": timedelta(seconds=address.retry_s)},
        )

    def _failure(self, error: Exception, key: str) -> ObjectStoreError:
        """The sentence for an error of the library, without the library's text, which may repeat signed requests."""
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        text, code = str(error), _code(error)
        where = f"{self.address}" + (f" at {self.address.endpoint}" if self.address.endpoint else "")
        if code == "NoSuchBucket":
            return ObjectStoreError(
                f"there is no bucket {where}. Make it, or correct the store's address", errno.ENOENT
            )
        if code == "RequestTimeTooSkewed":
            return ObjectStoreError(
                f"{where} refuses this process's signatures because this machine's clock is off by more than the service "
                "allows. Set it by NTP"
            )
        if code in _EXPIRED:
            return ObjectStoreError(
                f"the credentials of this process for {where} have expired ({code}). Give it new ones and start it again, or "
                "take them from a role or a web identity, which are renewed in time"
            )
        status = _STATUS.search(text)
        refused = status is not None and status[1] in _REFUSED  # a listing has a status but no code
        if refused or isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
            return ObjectStoreError(
                f"{where} refuses this process's credentials for {key or 'its list'} ({code or 'access denied'}). See that "
                "the environment, the profile or the role may list, read, put and delete there"
            )
        if _NO_CREDENTIALS.search(text):
            return ObjectStoreError(
                f"there are no credentials for {where}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or "
                "give the machine a role"
            )
        if status is not None and (status[1][0] in "34" or status[1] == "501") and status[1] not in _PASSING:
            return ObjectStoreError(
                f"{where} refuses {key or 'its list'} with status {status[1]} ({code or 'no reason given'}). See that it "
                "is the bucket's own endpoint and region, and that the service supports conditional puts"
            )
        why = f"status {status[1]}" if status is not None else _cause(text)
        return ObjectStoreError(
            f"{where} does not answer ({why}). See that the service runs and that this machine reaches it",
            errno.EHOSTUNREACH,
        )


def _profile() -> Any:
    """A provider of credentials if the environment names a profile; None: use the library's own chain."""
    if not os.environ.get("AWS_PROFILE"):
        return None
    try:
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise ObjectStoreError(
            "AWS_PROFILE is set, but reading profiles needs boto3. Run pip install 'freshet-graph[aws-profiles]', or give the "
            "credentials by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    try:
        return Boto3CredentialProvider()
    except (BotoCoreError, ValueError) as error:
        raise ObjectStoreError(f"the profile that AWS_PROFILE names gives no credentials: {error}") from None


def _entry(meta: Any) -> Found:
    return Found(meta["path"], meta["size"], str(meta["e_tag"]), meta["last_modified"].timestamp())


def _code(error: Exception) -> str:
    """The service's code of an error, such as ``NoSuchBucket``."""
    match = re.search(r"<Code>(\w+)</Code>", str(error))
    return match[1] if match else ""


def _cause(text: str) -> str:
    """The innermost cause that the connection library gives."""
    inner = re.findall(r'(?:message|error): "([^"]{1,100})"', text)
    if inner:
        return inner[-1]
    kind = re.search(r"kind: (\w+)", text)
    known = {"Connect": "no connection", "Timeout": "no answer in time"}
    return known.get(kind[1] if kind else "", "the connection broke")
