"""The victim of the lane's crash tests: brings a lane up to date, and dies where it is told to."""

from pathlib import Path

from freshet_graph.schemas.config import Lane
from freshet_graph.stream.store.crash import arm
from freshet_graph.stream.store.lane.writer import LaneWriter


def catch_up(store: Path, lane: Lane, crash_at: str) -> None:
    arm(crash_at)
    with LaneWriter(store, lane) as writer:
        writer.catch_up()
