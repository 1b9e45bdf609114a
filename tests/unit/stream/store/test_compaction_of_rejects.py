"""Refused messages outlive the compaction of their commits: all that are not published, and those of what is kept."""

from pathlib import Path

import pyarrow as pa
import pytest
from compacted import EVENTS, HEADER, SECOND
from log_events import refusal

from freshet_graph.schemas.store import Position
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.verify.store import verify

SNAPSHOTS = 6


@pytest.mark.parametrize(
    ("published", "stay"), [(0, [0, 1, 2, 3, 4, 5]), (1, [1, 2, 3, 4, 5]), (3, [3, 4, 5]), (5, [4, 5])]
)
def test_rejects_go_when_they_are_published_and_older_than_every_snapshot_kept(
    published: int, stay: list[int], tmp_path: Path
) -> None:
    """Commit n seals snapshot n; two snapshots are kept."""
    tau = EVENTS["t"].to_numpy() // SECOND
    with LogWriter.open(tmp_path, HEADER) as writer:
        for n in range(SNAPSHOTS):
            if n == SNAPSHOTS - 1 and published:
                writer.mark_published(published - 1)
            writer.commit(
                positions={("a", 0): Position(topic="a", partition=0, next=n + 1, max_t_us=0)},
                seal=[(n, EVENTS.filter(pa.array(tau == n)))],
                rejects=refusal(n),
                refused={"not_json": 1},
            )
    compact(tmp_path, Keep(snapshots=2), always=True)
    assert list(LogReader(tmp_path).with_rejects) == stay
    with LogWriter.open(tmp_path, HEADER) as writer:
        waiting = {
            rejected.commit: rejected.table["offset"].to_pylist() for rejected in writer.unpublished_rejects()
        }
    assert waiting == {n: [n] for n in range(published, SNAPSHOTS)}
    assert len(list((tmp_path / "log/rejects").iterdir())) == len(stay)
    assert verify(tmp_path).problems == []
