"""Schemas of a registry by their ids, ready for a reader: fetched before a poll is read, and remembered."""

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

import numpy as np

from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.decode.confluent import GUIDS
from freshet_graph.stream.decode.formats.schema_registry import UnknownSchemaError
from freshet_graph.stream.decode.reading import RefusedError
from freshet_graph.stream.service.heartbeat import beat

UNKNOWN_SCHEMA = "unknown_schema"
"""Reason of a message whose schema the registry does not have, or that cannot be read."""

KEPT_SCHEMAS = 1024
"""Most schemas in memory besides those of the poll in hand; the least recently used goes first."""
UNKNOWN_AT_ONCE = 64
"""Ids without a schema that one poll may ask for; random ones must not become a request each."""
UNKNOWN_S = 60.0
"""How long an unknown id stays unknown before it is asked for again."""
PREPARE_S = 2.0
"""How long schemas are fetched before the job may commit, or stop."""

Schema = TypeVar("Schema")


class RegisteredSchemas(Generic[Schema]):
    """The schemas that messages name.

    Args:
        fetch: Gives the schema of an id. It may raise ``UnknownSchemaError`` if there is none, ``RefusedError`` if it cannot be
            read, and ``UnavailableError`` if the registry does not answer.
    """

    def __init__(self, fetch: Callable[[int], Schema]) -> None:
        self._fetched = fetch
        # On a cluster several threads prepare and read polls of one topic. Only ``prepare`` forgets, and nothing that it has
        # just seen, so ``schema`` finds what was fetched for its poll.
        self._preparing = Lock()
        self._schemas: OrderedDict[int, Schema | RefusedError] = OrderedDict()
        self._unknown: dict[int, tuple[float, str]] = {}  # when they were asked for, and what was said
        self._requested: set[int] = set()  # the unknown ids that the poll in hand has asked for

    def prepare(self, numbers: Int64) -> str | None:
        """Fetch the schemas of messages, those of the most messages first; see ``MessageFormat.prepare``.

        Args:
            numbers: int64, the id of each message's schema; −1: it names none.

        Raises:
            UnavailableError: The registry does not answer.
        """
        distinct, counts = np.unique(numbers[numbers >= 0], return_counts=True)
        wanted = distinct[np.argsort(-counts, kind="stable")].tolist()
        with self._preparing:
            return self._fetch(wanted)

    def _fetch(self, wanted: list[int]) -> str | None:
        began_s = time.monotonic()
        self._requested &= set(wanted)
        for number, (asked_s, _) in list(self._unknown.items()):
            if began_s - asked_s >= UNKNOWN_S and number not in self._requested:
                del self._unknown[number]
        for number in wanted:
            if number in self._schemas:
                self._schemas.move_to_end(number)
        missing = [n for n in wanted if n not in self._schemas and n not in self._unknown]
        for fetched, number in enumerate(missing):
            if len(self._requested) >= UNKNOWN_AT_ONCE:
                break
            if fetched and time.monotonic() - began_s >= PREPARE_S:
                num_known = len(wanted) - len(missing) + fetched
                return f"{num_known:,} of the {len(wanted):,} schemas of its messages were fetched so far"
            beat()
            try:
                self._schemas[number] = self._fetched(number)
            except UnknownSchemaError as error:
                self._unknown[number] = time.monotonic(), str(error)
                self._requested.add(number)
            except RefusedError as error:
                self._schemas[number] = error
        self._requested.clear()
        while len(self._schemas) > max(KEPT_SCHEMAS, len(wanted)):
            self._schemas.popitem(last=False)
        return None

    def schema(self, number: int) -> Schema:
        """The schema of an id that was prepared.

        Raises:
            RefusedError: There is none, or it cannot be read.
        """
        schema = self._schemas.get(number)
        if schema is None:
            not_asked = f"schema {GUIDS.name(number)} was not asked for: {UNKNOWN_AT_ONCE} ids of this poll were unknown already"
            _, sentence = self._unknown.get(number, (0.0, not_asked))
            raise RefusedError(UNKNOWN_SCHEMA, sentence)
        if isinstance(schema, RefusedError):
            raise RefusedError(schema.reason, str(schema))
        return schema
