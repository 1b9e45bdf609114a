"""Where refused messages are looked for: the beginning and the gaps of a partition, and far from each other."""

from types import SimpleNamespace

import pyarrow as pa
from kafka import TopicPartition

from freshet_graph.schemas.events import REJECT_SCHEMA
from freshet_graph.stream.kafka.resend import NEAR, _places, _records

PLACE = TopicPartition("edges", 0)


class Partition:
    """A consumer of one partition, which has every third offset from 30 on; a poll gives two records."""

    def __init__(self) -> None:
        self.at, self.seeks = 0, 0

    def assign(self, places: list[TopicPartition]) -> None:
        assert places == [PLACE]

    def beginning_offsets(self, _: object) -> dict[TopicPartition, int]:
        return {PLACE: 30}

    def end_offsets(self, _: object) -> dict[TopicPartition, int]:
        return {PLACE: 9000}

    def seek(self, _: TopicPartition, offset: int) -> None:
        self.at, self.seeks = offset, self.seeks + 1

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[SimpleNamespace]]:
        offsets = [offset for offset in range(self.at, self.at + 6) if offset % 3 == 0]
        self.at = offsets[-1] + 1
        return {PLACE: [SimpleNamespace(offset=offset) for offset in offsets]}

    def position(self, _: TopicPartition) -> int:
        return self.at


def test_each_offset_has_its_record_or_none_if_it_is_no_longer_there() -> None:
    partition = Partition()
    far = 60 + 3 * NEAR
    records = list(_records(partition, PLACE, [3, 30, 31, 33, 60, far, 9000]))
    assert [None if record is None else record.offset for record in records] == [
        None, None, 30, None, 33, 60, far,
    ]  # fmt: skip
    assert partition.seeks == 2, "to the first, and over what is far"


def test_a_message_is_looked_for_once_whatever_number_of_its_rows_is_refused() -> None:
    rows = [("b", 1, 7), ("a", 0, 9), ("a", 0, 4), ("a", 0, 9)]
    table = pa.table(
        {
            "topic": [row[0] for row in rows],
            "partition": pa.array([row[1] for row in rows], pa.int32()),
            "offset": [row[2] for row in rows],
            "row": pa.nulls(4, pa.int32()),
            "reason": ["x"] * 4,
            "sentence": ["y"] * 4,
            "raw": pa.nulls(4, pa.binary()),
        },
        schema=REJECT_SCHEMA,
    )
    assert _places(table) == {("a", 0): [4, 9], ("b", 1): [7]}
