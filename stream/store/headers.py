"""Immutable headers: written once, and from then on what a configuration has to agree with."""

from pathlib import Path
from typing import TypeVar

from schemas.store import Record
from stream.store.errors import MismatchError
from stream.store.records import put_record, read_record, seal_record

R = TypeVar("R", bound=Record)


def put_or_agree(path: Path, wanted: R, what: str) -> R:
    """Write a header, or check that the one there says the same.

    Args:
        path: Where it lies.
        wanted: What the configuration asks for.
        what: What has it for life, such as ``a log``.

    Returns:
        The header as it stands.

    Raises:
        MismatchError: They differ; the message names the key and both values.
        CorruptError, FormatVersionError: It is damaged, or of another release.
        OSError: The disk refuses.
    """
    if not path.exists():
        return put_record(path, wanted)
    found = read_record(path, type(wanted))
    for key, value in seal_record(wanted):
        if key != "checksum" and getattr(found, key) != value:
            raise MismatchError(
                f"{path} has {key} = {getattr(found, key)!r}, the configuration asks for {value!r}; "
                f"it is fixed for the life of {what}: change the configuration back, or choose a new "
                f"{'store' if what == 'a log' else 'name'}"
            )
    return found
