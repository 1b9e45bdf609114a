"""Places of an event's fields in a topic's messages: paths of keys, words for ops, prefixes of ids."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from freshet_graph.schemas.section import Section

MAX_PATH_KEYS = 16
MAX_PARTS = 4096
"""Most parts of any lane; partitioners keep some tables with a row and a column per part."""
MAX_FEATURE_PATHS = 4096

PathKeys = tuple[str, ...]
OpName = Literal["insert", "delete"]

RECORD_COLUMNS = {
    "$timestamp": "$timestamp",
    "$key": "$key, or a field inside of it, such as $key.id",
    "$headers": "$headers.NAME",
    "$topic": "$topic",
    "$partition": "$partition",
}
"""The columns of a Kafka record beside its value, and the paths that lead to them."""


class RecordColumn(str):
    """The first key of a path to a column of ``RECORD_COLUMNS``; a key of a message may be spelled alike."""

    __slots__ = ()


def path_keys(path: str) -> PathKeys:
    r"""The keys of a path: ``card.id`` is ``("card", "id")``; ``\.`` is a dot in a key, ``\\`` a backslash, ``\$`` a dollar.

    Raises:
        ValueError: An empty or overlong path, an empty key, or a backslash before anything else.
    """
    keys, key, characters = [], "", iter(path)
    for character in characters:
        if character == "\\":
            escaped = next(characters, "")
            if escaped not in ("\\", ".", "$") or not escaped:
                raise ValueError(
                    rf"path {path!r} has a backslash before something other than a dot, a backslash or a dollar"
                )
            key += escaped
        elif character == ".":
            keys.append(key)
            key = ""
        else:
            key += character
    keys.append(key)
    if not all(keys):
        raise ValueError(f"path {path!r} has an empty key; expected keys joined by dots, such as card.id")
    if len(keys) > MAX_PATH_KEYS:
        raise ValueError(f"path {path!r} has {len(keys)} keys, but at most {MAX_PATH_KEYS} are allowed")
    return tuple(keys)


def field_keys(path: str) -> PathKeys:
    """The keys of a field's path, the first a ``RecordColumn`` if it leads beside the message.

    Raises:
        ValueError: See ``path_keys``; or the record has no such column.
    """
    keys = path_keys(path)
    if not path.startswith("$"):
        return keys
    fits = {"$key": len(keys) >= 1, "$headers": len(keys) >= 2}.get(keys[0], len(keys) == 1)
    if keys[0] not in RECORD_COLUMNS or not fits:
        near = get_close_matches(keys[0].lower(), RECORD_COLUMNS, n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"path {path!r} begins with a dollar, but a record has {', '.join(RECORD_COLUMNS.values())}. "
            rf"{meant}Write \{path} for a key of the message"
        )
    return RecordColumn(keys[0]), *keys[1:]


def _checked(path: str) -> str:
    field_keys(path)
    return path


Path = Annotated[str, AfterValidator(_checked)]


class LogFeature(Section):
    """The logarithm of a number: sign · log(1 + |number|)."""

    log: Path = Field(description="Path of the number.")


class HashFeature(Section):
    """A category as numbers: of ``width`` ones the one at the hash of its text is 1, and the others are 0."""

    hash: Path = Field(description="Path of a text, a number or a boolean.")
    width: int = Field(
        ge=2, le=MAX_FEATURE_PATHS, description="Number of values; categories of one hash are alike."
    )


FeatureSource = Path | LogFeature | HashFeature


def feature_path(source: FeatureSource) -> str:
    """The path of one of several features."""
    if isinstance(source, LogFeature):
        return source.log
    return source.hash if isinstance(source, HashFeature) else source


class Fields(Section):
    """Paths of keys to the fields of an event, or of a label; only what is named here is read.

    A path may lead beside the message: $timestamp, $key, $headers.NAME, $topic, $partition.
    """

    src: Path | None = Field(None, description="Source id of an edge event.")
    dst: Path | None = Field(None, description="Destination id of an edge event.")
    node: Path | None = Field(None, description="Id of a node event.")
    t: Path = Field(description="Event time.")
    op: Path | None = Field(None, description="Operation of the event; topic key ops has its words.")
    weight: Path | None = Field(None, description="Edge weight.")
    features: (
        Path | Annotated[list[FeatureSource], Field(min_length=1, max_length=MAX_FEATURE_PATHS)] | None
    ) = Field(
        None,
        description="An array of numbers, or a list of paths to one number each, all or none of which are given. "
        "{log: amount} is sign · log(1 + |amount|), and {hash: currency, width: 8} is a category as 8 numbers.",
    )
    label: Path | None = Field(None, description="Label.")
    event_id: Path | None = Field(
        None,
        description="The producer's id of the event; in a label topic, of the event that the label is of.",
    )
    source: Path | None = Field(
        None,
        description="In a label topic: who decided, such as analyst; the topic's key sources ranks them.",
    )
    offset: Path | None = Field(None, description="First position that values replace.")
    values: Path | None = Field(None, description="New values of a node's features from offset on.")

    def paths(self) -> Iterator[tuple[str, int, PathKeys]]:
        """Name of a field, place among the paths of a list of features (else 0), and its keys."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            for part, path in enumerate(value if isinstance(value, list) else [value]):
                if path is not None:
                    yield name, part, field_keys(feature_path(path))

    @property
    def read_as(self) -> dict[str, str]:
        """The fields of a label that are read as another field of a node event; empty for events.

        The node is then the one, or the event, that the label is of, and the event's id is the label's source.
        """
        read_as = {} if self.source is None else {"source": "event_id"}
        return read_as | ({"event_id": "node"} if self.src is None and self.node is None else {})

    @property
    def is_of_label(self) -> bool:
        """Whether these are the fields of a label: of an event or a node, and no field that only events have."""
        given = {name for name, _, _ in self.paths()}
        of = given & {"event_id", "node"}
        return len(of) == 1 and {"label", "t"} <= given <= {*of, "label", "t", "source"}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.src is None) != (self.dst is None):
            raise ValueError("src and dst belong together. Name both or, for node events, node")
        if self.src is None and self.node is None and not self.is_of_label:
            raise ValueError("name src and dst (edge events), node (node events), or all three")
        if self.node is not None and self.node in (self.src, self.dst):
            raise ValueError(
                f"node and an end of an edge are both at {self.node}. Give each a path of its own"
            )
        if self.node is not None and self.node.startswith("$") and self.src is not None:
            raise ValueError(
                f"node is at {self.node}, so every message is a node event. Leave out src and dst, or node"
            )
        if (self.offset is None) != (self.values is None):
            raise ValueError("offset and values belong together. Name both or neither")
        if self.values is not None and self.node is None:
            raise ValueError("offset and values are of node events. Name node as well")
        listed = self.features if isinstance(self.features, list) else []
        if len({*map(repr, listed)}) < len(listed):
            raise ValueError(f"features names a path twice: {listed}")
        if self.values is not None and self.values == self.features:
            raise ValueError(f"features and values are both at {self.values}. Give each a path of its own")
        holders = {keys: name for name, _, keys in self.paths()}
        for name, _, keys in self.paths():
            for above in (keys[:size] for size in range(1, len(keys))):
                if above in holders:
                    raise ValueError(
                        f"{name} lies at {'.'.join(keys)}, inside of {'.'.join(above)}, where {holders[above]} "
                        "is: a place holds a value or an object"
                    )
        return self


class IdPrefix(Section):
    """Text before the ids of a topic, so that cards and merchants never share an id."""

    src: str = Field("", max_length=64, description="Before src, such as 'card:'.")
    dst: str = Field("", max_length=64, description="Before dst, such as 'merchant:'.")
    node: str = Field("", max_length=64, description="Before node, in node events.")

    def __bool__(self) -> bool:
        return bool(self.src or self.dst or self.node)
