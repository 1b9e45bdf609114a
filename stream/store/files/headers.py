"""Headers. A configuration must agree with them from the first commit on; until then they follow the configuration."""

from collections.abc import Collection
from typing import TypeVar

from schemas.events import US_PER_S
from schemas.store import Record
from stream.store.errors import RESTORE, CorruptError, MismatchError
from stream.store.files.records import put_record, read_record, seal_record
from stream.store.places.place import Place

R = TypeVar("R", bound=Record)

CONFIG_KEYS = {
    "interval_us": "snapshots.interval_s",
    "node_features": "features.node",
    "edge_features": "features.edge",
    "segments": "features.segments",
    "graph": "graph",
    "ids": "ids",
}
"""Configuration keys of a header's keys; all others are keys of a lane."""


def put_or_agree(path: Place, wanted: R, what: str, *, begun: bool, changeable: Collection[str] = ()) -> R:
    """Write a header, or check that the existing one agrees; the caller has the folder's lock.

    A header without a commit binds nothing and is replaced, so that a first start with a wrong key leaves nothing to clean up
    by hand.

    Args:
        path: The header's place.
        wanted: The header as the configuration has it.
        what: Its owner, such as ``a log``.
        begun: Whether there is a commit under the header.
        changeable: Keys that may differ: they say how the header's owner began and bind nothing.

    Returns:
        The header as written.

    Raises:
        MismatchError: They differ; the message names the key and both values.
        CorruptError, FormatVersionError: It is damaged, from another release, or missing though there are commits.
        OSError: The disk refuses.
    """
    if not path.exists():
        if begun:
            raise lost_header(path)
        return put_record(path, wanted)
    found = read_record(path, type(wanted))
    if not begun:
        same = found.checksum == seal_record(wanted).checksum
        return found if same else put_record(path, wanted, replace=True)
    require_agreement(path, found, wanted, what, changeable)
    return found


def require_agreement(path: Place, found: R, wanted: R, what: str, changeable: Collection[str] = ()) -> None:
    """Check that a header with commits agrees with the configuration.

    Raises:
        MismatchError: They differ; the message names the key and both values.
    """
    for key, value in seal_record(wanted):
        if key not in {"checksum", *changeable} and getattr(found, key) != value:
            name = CONFIG_KEYS.get(key, f"lanes.{key}")
            raise MismatchError(
                f"{path} has {name} = {_configured(key, getattr(found, key))}, the configuration asks for "
                f"{_configured(key, value)}. It is fixed for the life of {what}. Change the configuration back, or choose a "
                f"new {'store' if what == 'a log' else 'name'}"
            )


def _configured(key: str, value: object) -> str:
    """A header's value in the form of the configuration."""
    return f"{value / US_PER_S:.15g}" if key == "interval_us" and isinstance(value, int) else repr(value)


def lost_header(path: Place) -> CorruptError:
    """The error for commits without their header, which a new header could not replace."""
    return CorruptError(f"{path} is missing, though there are commits under it{RESTORE}")
