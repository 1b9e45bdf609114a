"""A writer of exports, to be killed: forks a process for each crash point, then looks at what it left.

Usage: python export_job.py STORE. Prints one JSON object: what readers saw after each kill, and at the end.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import pyarrow as pa
from exported import add

from freshet_graph.stream.store.crash import arm
from freshet_graph.stream.store.exports import ExportReader, ExportWriter

POINTS = (
    "file.torn", "file.written", "file.synced", "file.renamed:1", "file.renamed:2", "files.named", "export.named",
    "record.torn", "record.written", "record.synced", "record.linked", "record.named", "export.committed",
)  # fmt: skip


def export(store: str, tau: int) -> None:
    """One export of a snapshot, as the trainer makes it."""
    writer = ExportWriter(store, "lane")
    if any(commit.tau == tau for commit in writer.reader.commits):
        return
    table = pa.table({"id": [tau] * 1000})
    add(writer, {"embeddings": table, "scores": table}, tau=tau, sequence=tau, after=tau - 1)


def seen(store: str) -> list[int]:
    """Snapshots that a reader finds, each of whose files it has read whole."""
    reader = ExportReader(store, "lane")
    for commit in reader.commits:
        for kind in ("embeddings", "scores"):
            table = reader.table(commit, kind)
            assert table is not None
            assert table["id"].to_pylist() == [commit.tau] * 1000
    return [commit.tau for commit in reader.commits]


def main(store: str) -> None:
    after_kill = []
    for tau, point in enumerate(POINTS):
        child = os.fork()
        if child == 0:
            arm(point)
            export(store, tau)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        after_kill.append((point, os.WIFSIGNALED(status), seen(store)))
        export(store, tau)
    left = sorted(path.name for path in Path(store).rglob("*.arrow*"))
    print(json.dumps({"after_kill": after_kill, "end": seen(store), "files": len(left)}))


if __name__ == "__main__":
    main(sys.argv[1])
