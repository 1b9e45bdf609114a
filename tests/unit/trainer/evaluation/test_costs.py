"""The costs of training: one table on all ranks, whatever each of them did, and what of a store is mapped."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from thread_ranks import FakeLink, ThreadRanks, side_by_side

from freshet_graph.trainer.evaluation.costs import costs_of, mapped_bytes, work
from freshet_graph.trainer.strategies.interface import StepReport


def test_seconds_and_bytes_of_all_ranks_are_added_up_by_purpose_also_where_one_sent_or_learned_nothing() -> (
    None
):
    def worked(ranks: ThreadRanks) -> Any:
        before = ranks.traffic.copy()
        ranks.from_first(1, "first")  # 8 bytes, from rank 0 only
        ranks.compute(10.0 * ranks.rank)
        ranks.total([1.0])
        report = StepReport(seconds={"train": 5.0} if ranks.rank else {}, traffic=ranks.traffic.since(before))
        return work([report, report], ranks)

    found, other = side_by_side(2, worked, FakeLink(1.0, 8.0))
    assert found == other
    assert found["sent_bytes"] == {"first": 16, "control": 32}
    assert found["comm_seconds"] == {"first": 2 * (2.0 + 2.0), "control": 2 * (12.0 + 2.0)}
    assert (found["train_s"], found["wait_s"]) == (10.0, 36.0)
    assert costs_of([found, found])["comm_seconds"] == pytest.approx(found["comm_seconds"])
    assert costs_of([found, found])["sent_bytes"] == {"first": 32, "control": 64}
    assert costs_of([{"sent_bytes": {}, "comm_seconds": {}}]) == {}, "one rank sends nothing"


def test_mapped_files_of_a_store_count_while_they_are_mapped_and_no_others(tmp_path: Path) -> None:
    before = mapped_bytes()
    for name in ("events.arrow", "weights.bin"):
        (tmp_path / name).write_bytes(bytes(1 << 20))
    held = [pa.memory_map(str(tmp_path / name)).read_buffer() for name in ("events.arrow", "weights.bin")]
    assert mapped_bytes() == before + len(held[0])
    (tmp_path / "events.arrow").unlink()  # a compaction removes files that a reader has mapped
    assert mapped_bytes() == before + len(held[0])
    del held
    assert mapped_bytes() == before
