"""The victim of compaction's crash tests: compacts a store, or removes a lane, and dies where it is told to."""

from pathlib import Path

from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.crash import arm


def compact_store(store: Path, keep: int, crash_at: str, remove: tuple[str, ...] = ()) -> None:
    arm(crash_at)
    compact(store, Keep(snapshots=keep), always=True, remove=remove)
