"""What can be wrong with a store, each with a sentence that names file, place and remedy."""

from schemas.errors import FreshetError


class StoreError(FreshetError):
    """Base of all errors of the store."""


class LaneBusyError(StoreError):
    """Another process writes this log or lane; the message names both writers."""


class CorruptError(StoreError):
    """A file is not what the record that names it says: truncated, flipped, missing, foreign or swapped."""


class MissingError(CorruptError):
    """A file that a record names is not there."""


class FormatVersionError(StoreError):
    """A store written by a newer (or unknown) format version."""


class MismatchError(StoreError):
    """The configuration asks for something else than the store was made for; the message names the key."""


class ConfigMissingError(StoreError):
    """There is no store, log or lane at the given place."""


class OffsetGapError(StoreError):
    """Messages between the log's next offset and the first one offered are gone; the message has both."""


class RetainedError(StoreError):
    """A snapshot asked for is older than what is kept; the message says from where a reader can start."""
