"""The address of a store in a bucket: ``s3://bucket/prefix?region=…&endpoint=…``."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import AfterValidator

SCHEME: Final = "s3://"

_BUCKET: Final = re.compile(r"[A-Za-z0-9._-]{1,255}")
_REGION: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HOST: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?")

_WORDS: Final = ("region", "endpoint", "cache")
_NUMBERS: Final = {"cache_gib": 0.001, "retry_s": 0.1, "lease_s": 1.0}
"""Numbers in an address, with the least value of each."""


@dataclass(frozen=True, slots=True)
class Address:
    """A bucket and how it is used, without credentials.

    Attributes:
        bucket: Its name.
        prefix: Keys of the store begin with it and a slash; without slashes at its ends, may be empty.
        region: AWS region; None: the environment's.
        endpoint: URL of a service other than AWS; None: the environment's.
        cache: Folder of files that were read; None: ``freshet`` in the user's cache folder.
        cache_gib: Its largest size, GiB.
        retry_s: How long an operation is tried while the service doesn't answer, seconds.
        lease_s: How long a writer that fell silent keeps others out, seconds.
    """

    bucket: str
    prefix: str = ""
    region: str | None = None
    endpoint: str | None = None
    cache: Path | None = None
    cache_gib: float = 20.0
    retry_s: float = 60.0
    lease_s: float = 15.0

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}"


def is_address(store: object) -> bool:
    """Whether a store's name is an address of a bucket."""
    return isinstance(store, str) and store.startswith(SCHEME)


def parse_address(text: str) -> Address:
    """Read ``s3://bucket/prefix``, maybe with ``?`` and values of ``_WORDS`` and ``_NUMBERS``.

    Raises:
        ValueError: It is no address; the sentence says why, without what might be credentials.
    """
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise ValueError(
            "a store's address must not have credentials. Leave out everything before @, and give them by AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role"
        )
    if parts.scheme != "s3" or not parts.netloc:
        raise ValueError(f"{text.partition('?')[0]!r} is no address of a store, such as s3://bucket/prefix")
    if not _BUCKET.fullmatch(parts.netloc):
        raise ValueError(
            f"{parts.netloc!r} is no name of a bucket, which has letters, digits, dots, dashes and underscores"
        )
    steps = [step for step in unquote(parts.path).split("/") if step]
    if any(step in {".", ".."} for step in steps):
        raise ValueError(f"the prefix of {text.partition('?')[0]!r} has a step that is . or ..")
    words: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key in _WORDS and value:
            words[key] = value
        elif key in _NUMBERS:
            numbers[key] = _number(key, value)
        else:
            known = ", ".join((*_WORDS, *_NUMBERS))
            raise ValueError(
                f"an address of a store has no key {key!r} with such a value. Its keys are {known}. Credentials come from "
                "the environment, a profile or the machine's role"
            )
    if "endpoint" in words:
        require_endpoint(words["endpoint"])
    if not _REGION.fullmatch(words.get("region", "-")):
        raise ValueError(f"{words['region']!r} is no name of a region, such as eu-central-1")
    cache = words.pop("cache", None)
    return Address(
        parts.netloc, "/".join(steps), cache=None if cache is None else Path(cache), **words, **numbers
    )


def require_endpoint(url: str) -> None:
    """Check a service's URL, because the library that uses it ends the process if it is incomplete.

    Raises:
        ValueError: It is no URL; what might be credentials is not repeated.
    """
    sentence = "the endpoint of a store's address is a URL such as https://storage.example.org:9000, without credentials"
    try:
        parts = urlsplit(url)
        whole = parts.scheme in {"http", "https"} and _HOST.fullmatch(parts.netloc) and parts.port != 0
    except ValueError:  # of the port, or of brackets
        whole = False
    if not whole or not url.isascii() or not url.isprintable() or set(url) & set(' "<>\\^`{|}'):
        shown = f", found {url!r}" if "@" not in url else ""
        raise ValueError(sentence + shown)


def _number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not _NUMBERS[key] <= number < float("inf"):
        raise ValueError(
            f"{key} of a store's address must be a number of at least {_NUMBERS[key]:g}, found {value!r}"
        )
    return number


def checked_store(store: str) -> str:
    """A configuration's store: a folder, or a valid address.

    Raises:
        ValueError: It looks like an address but is not a bucket's.
    """
    if is_address(store):
        parse_address(store)
    elif "://" in store:
        scheme = store.partition("://")[0]
        raise ValueError(
            f"store must be a folder or an address such as s3://bucket/prefix, found one with {scheme}://"
        )
    return store


Store = Annotated[str, AfterValidator(checked_store)]
"""The store of a configuration."""
