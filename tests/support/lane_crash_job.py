"""The victim of the lane's crash tests: brings a lane up to date, and dies where it is told to."""

import tempfile
from pathlib import Path

from lane_stream import lane, make_store

from schemas.config import Lane
from stream.store.crash import arm
from stream.store.lane.writer import LaneWriter


def catch_up(store: Path, lane: Lane, crash_at: str) -> None:
    arm(crash_at)
    with LaneWriter(store, lane) as writer:
        writer.catch_up()


# Jobs are forked from a process that has imported this module: what is loaded and compiled here is so for all.
with tempfile.TemporaryDirectory() as folder:
    make_store(Path(folder), lane("distdy"), lane("sep"))
    for name in ("distdy", "sep"):
        catch_up(Path(folder), lane(name), "")
