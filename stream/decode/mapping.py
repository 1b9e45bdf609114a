"""Places of an event's fields in a topic's messages, ready for the readers."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

from freshet_graph.schemas.config import Topic
from freshet_graph.schemas.events import Op
from freshet_graph.schemas.fields import HashFeature, PathKeys, RecordColumn, path_keys

FIELDS = ("src", "dst", "t", "op", "weight", "features", "label", "event_id", "node", "offset", "values")
"""The fields of an edge event or a node event, and the keys of a message without a mapping."""

WRITTEN = "written"
"""Target of a path whose value is left as it is written."""

FIELDS_OF = {"src": ("src", "node"), "features": ("features", "values"), "feature_offset": ("offset",)}
"""The fields that become a column of events, if it is not the one of the same name."""

_MEANING = {"insert": Op.INSERT, "delete": Op.DELETE}

VALUE, TEXTS, JSON, AVRO, INNER = "value", "texts", "json", "avro", "inner"
"""Parts of a record with fields: its value; columns of texts, numbers and times; keys and headers in JSON; keys in Avro; and a
text of the value that is JSON."""
ELEMENT = "element"
"""A part of a value: an element of an array of events."""

Target = tuple[str, int]
"""A field, and its place among the paths of features that come from several (else 0)."""

Level = dict[str, Any]
"""Keys of an object: each leads to another level, or to a list of targets."""


class Prefix(NamedTuple):
    """Text before ids."""

    src: str = ""
    dst: str = ""
    node: str = ""


_NO_PREFIX = Prefix()


def _part(topic: Topic, keys: PathKeys, *, is_array: bool) -> str:
    """The part of the record that a field is in."""
    if not isinstance(keys[0], RecordColumn):
        return VALUE
    if keys[0] == "$key":
        return {"json": JSON, "avro": AVRO}.get(topic.key_format, TEXTS)
    # A header is text, unless a field lies inside of it, or is an array.
    return JSON if keys[0] == "$headers" and (len(keys) > 2 or is_array) else TEXTS


@dataclass(frozen=True)
class Mapping:
    """A topic's mapping, for the readers of its messages.

    Attributes:
        paths: The keys to each target.
        words: Words of op and their meaning.
        prefix: Text before ids.
        mapped: Whether ``fields`` was given; else paths are the fields' own names.
        own_ops: Whether ``ops`` was given.
        feature_parts: Number of paths that features are made of; 0: they are one array, or there are none.
        time_texts: Whether ``t`` may be an RFC 3339 text besides a number: the topic has no ``time_unit``.
        elsewhere: Fields that other parts of the record have: a message needs none of them.
        hashed: Of each of listed features the number of values that a category takes; 0: it is a number.
        many: Keys of the array whose elements are events; None: a message is one. Paths lead through it.
        text: Keys of a text that is JSON, to which paths lead; None: there is none.
        scales: Keys of decimals in bytes, each with its scale.
        called: The fields of a label that are read as another one, and their names in sentences.
    """

    paths: tuple[tuple[Target, PathKeys], ...] = tuple(((name, 0), (name,)) for name in FIELDS)
    words: tuple[tuple[str, Op], ...] = tuple(_MEANING.items())
    prefix: Prefix = _NO_PREFIX
    mapped: bool = False
    own_ops: bool = False
    feature_parts: int = 0
    time_texts: bool = False
    elsewhere: frozenset[str] = frozenset()
    hashed: tuple[int, ...] = ()
    many: PathKeys | None = None
    text: PathKeys | None = None
    scales: tuple[tuple[PathKeys, int], ...] = ()
    called: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, topic: Topic) -> Self:
        """The mapping that a topic's configuration asks for."""
        more: dict[str, Any] = {"time_texts": topic.time_unit is None, "many": topic.many_keys}
        more["text"] = path_keys(topic.json_text) if topic.json_text is not None else None
        more["scales"] = tuple((path_keys(path), scale) for path, scale in (topic.scale or {}).items())
        if topic.fields is not None:
            read_as = topic.fields.read_as
            paths = tuple(
                ((read_as.get(name, name), part), keys) for name, part, keys in topic.fields.paths()
            )
            listed = topic.fields.features
            called = tuple((field, name) for name, field in read_as.items())
            more |= {"paths": paths, "mapped": True, "called": called}
            if isinstance(listed, list):
                hashed = tuple(one.width if isinstance(one, HashFeature) else 0 for one in listed)
                more |= {"feature_parts": len(listed), "hashed": hashed}
        if topic.ops is not None:
            words = tuple((word, _MEANING[meaning]) for word, meaning in topic.ops.items())
            more |= {"words": words, "own_ops": True}
        if topic.id_prefix is not None:
            more["prefix"] = Prefix(**topic.id_prefix.model_dump())
        return cls(**more)

    @classmethod
    def parts(cls, topic: Topic) -> "dict[str, Mapping]":
        """The mapping of each part of a record that has fields (``VALUE``, ``TEXTS``, ``JSON``, ``AVRO``), and of the value."""
        whole = cls.of(topic)

        def part(name: str, keys: PathKeys) -> str:
            listed = name == "features" and whole.feature_parts > 0
            return _part(topic, keys, is_array=name in ("features", "values") and not listed)

        return {
            where: mapping if where == VALUE else replace(mapping, many=None, text=None)
            for where, mapping in whole._grouped(part, VALUE).items()
        }

    def elements(self) -> "dict[str, Mapping]":
        """The mapping of each element of ``many``, ``ELEMENT``, and that of what is around them, ``VALUE``."""
        many = self.many or ()
        parts = self._grouped(lambda _, keys: ELEMENT if keys[: len(many)] == many else VALUE, VALUE)
        return {where: replace(mapping, many=None) for where, mapping in parts.items()}

    def around_text(self) -> "dict[str, Mapping]":
        """The mapping of columns, ``VALUE``, and that of the text in one of them, ``INNER``, if fields lie in it."""
        if self.text is None:
            return {VALUE: self}
        return self._grouped(lambda _, keys: INNER if self.in_text(keys) else VALUE, VALUE)

    def in_text(self, keys: PathKeys) -> bool:
        """Whether a path leads into ``text``."""
        text = self.text
        return text is not None and len(keys) > len(text) and keys[: len(text)] == text

    @property
    def columns(self) -> tuple[PathKeys, ...]:
        """The paths, as far as they lead through columns: those into ``text`` end there."""
        return tuple((self.text or ()) if self.in_text(keys) else keys for _, keys in self.paths)

    def _grouped(self, part_of: Callable[[str, PathKeys], str], always: str) -> "dict[str, Mapping]":
        """Several mappings, each with some of the fields, the others being elsewhere.

        Listed features may be in several: each numbers its own from 0.
        """
        paths: dict[str, list[tuple[Target, PathKeys]]] = {always: []}
        listed: Counter[str] = Counter()
        hashed: dict[str, list[int]] = {}
        for (name, part), keys in self.paths:
            where = part_of(name, keys)
            is_listed = name == "features" and self.feature_parts > 0
            paths.setdefault(where, []).append(((name, listed[where] if is_listed else 0), keys))
            if is_listed:
                listed[where] += 1
                hashed.setdefault(where, []).append(self.hashed[part])
        return {
            where: replace(
                self,
                paths=tuple(part_paths),
                feature_parts=listed[where],
                hashed=tuple(hashed.get(where, ())),
                elsewhere=self.elsewhere | self.names - {name for (name, _), _ in part_paths},
            )
            for where, part_paths in paths.items()
        }

    @cached_property
    def names(self) -> frozenset[str]:
        """The fields that have paths."""
        return frozenset(name for (name, _), _ in self.paths)

    @cached_property
    def of_nodes(self) -> bool:
        """Whether every message is of a node, because no field is an end of an edge."""
        return self.mapped and "node" in self.names and not {"src", "dst"} & (self.names | self.elsewhere)

    @cached_property
    def ops(self) -> dict[str, Op]:
        """The meaning of each word of op."""
        return dict(self.words)

    @cached_property
    def tree(self) -> Level:
        """The paths as nested levels."""
        root: Level = {}
        for target, keys in self.paths:
            level = root
            for key in keys[:-1]:
                level = level.setdefault(key, {})
            level.setdefault(keys[-1], []).append(target)
        return root

    def shown(self, name: str, part: int = 0) -> str:
        """A field in a sentence: its name, and its path if it differs."""
        called = dict(self.called).get(name, name)
        for target, keys in self.paths:
            if target == (name, part):
                return called if keys == (called,) else f"{called} ({'.'.join(keys)})"
        return called

    def column(self, name: str) -> str:
        """A column of events in a sentence: its name, and the path that it comes from if there is one other path."""
        known = {field for (field, _), _ in self.paths}
        given = [field for field in FIELDS_OF.get(name, (name,)) if field in known]
        if not self.mapped or len(given) != 1 or (name == "features" and self.feature_parts):
            return name
        shown_name, called = self.shown(given[0]), dict(self.called).get(given[0], name)
        return f"{called} {shown_name[shown_name.index('(') :]}" if "(" in shown_name else called


NATIVE = Mapping()
"""Messages as ``freshet-stream schema`` describes them."""
