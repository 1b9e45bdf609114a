"""A group's offsets that nobody keeps, and topics that nobody watches: a log's host without brokers."""

from collections.abc import Iterable, Mapping

from freshet_graph.schemas.config import Kafka
from freshet_graph.schemas.store import Position


class NoOffsets:
    def __init__(self, *_: object) -> None:
        pass

    def committed(self, positions: list[Position]) -> None:
        pass

    def close(self) -> None:
        pass


class NoWatch:
    lost = None

    def __init__(self, _: Kafka, ids: Mapping[str, str]) -> None:
        self.ids = dict(ids)

    def reading(self, partitions: Iterable[tuple[str, int]]) -> None:
        pass

    def confirm(self, topics: Iterable[str]) -> None:
        pass

    def close(self) -> None:
        pass
