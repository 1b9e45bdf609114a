"""Messages that nobody should send: random, cut, mutated and forged ones, from a seed; some valid ones among them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from hostile_arrow import arrow_makers
from hostile_draws import Make
from hostile_json import json_makers

from freshet_graph.schemas.config import StreamConfig, Topic


@dataclass(frozen=True, slots=True)
class Profile:
    """A topic's configuration and the kinds of messages it is sent."""

    name: str
    config: StreamConfig
    makers: dict[str, Make]

    @property
    def topic(self) -> Topic:
        """The one topic."""
        return self.config.kafka.topics[0]

    def messages(self, rng: np.random.Generator, count: int) -> Iterator[tuple[str, bytes | None]]:
        """So many messages, each with its kind."""
        kinds = list(self.makers)
        for choice in rng.integers(0, len(kinds), count).tolist():
            yield kinds[choice], self.makers[kinds[choice]](rng)


def profiles(**more: Any) -> list[Profile]:
    """JSON and Arrow topics, with ids of both kinds."""
    made = []
    for ids in ("int", "string"):
        made.append(Profile(f"json, {ids} ids", _config("json", ids, **more), json_makers(ids)))
        made.append(Profile(f"arrow, {ids} ids", _config("arrow", ids, **more), arrow_makers(ids)))
    return made


def _config(kind: str, ids: str, **more: Any) -> StreamConfig:
    content: dict[str, Any] = {
        "graph": "fuzz",
        "store": "unused",
        "kafka": {"bootstrap": "unused:9092", "topics": [{"name": "fuzz", "format": kind}]},
        "snapshots": {"interval_s": 86_400},
        "features": {"node": 4, "edge": 2},
        "ids": ids,
    }
    return StreamConfig(**(content | more))
