"""The tour of the code is what a run does: it enters the files that the page names, and few others."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from running_job import reached
from streaming import configuration, edge, fresh_topic, send
from trainer_sessions import examples_of, session_on
from trainer_streams import make_lane, meetings

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.job.loop import StreamJob
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.trainer.session.snapshot_trainer import SnapshotTrainer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
MESSAGE, EVENT = (
    re.findall(r"^\d+\. `((?:stream|trainer)/[\w/]+\.py)`", part, re.MULTILINE)
    for part in PAGE.split("\n## ")[1:3]
)
BESIDE = {"message": 36, "event": 31}
"""Modules of ours that may be entered beside those of the page. Lower them when you can."""
TIMED = ("stream/kafka/", "stream/service/")
"""Folders not counted beside the page: a client that connects again, or a heartbeat, enters more of them."""


class Entered:
    """The files of ours in which a function was called while it is ``on``, in any thread begun under it."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.on = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename.replace("/freshet_graph/", "/")  # links to the packages
        if self.on and event == "call" and path.startswith(OURS) and not path.startswith(CLUSTER):
            self.files.add(path[len(f"{ROOT}/") :])


CLUSTER = f"{ROOT}/stream/cluster/"
"""Once loaded by another test, its coder of micro-batches serves this process's pipelines, too."""
OURS = tuple(f"{ROOT}/{package}/" for package in ("schemas", "stream", "trainer"))


@contextmanager
def following() -> Iterator[Entered]:
    """Follow all calls of this thread and of those that it begins."""
    entered, before = Entered(), sys.getprofile()
    threading.setprofile(entered)
    sys.setprofile(entered)
    try:
        yield entered
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]  # typeshed has no None


def require_tour(path: str, named: list[str], entered: set[str]) -> None:
    """Check that a run entered all named files, and few others."""
    assert len(named) == 12
    assert not set(named) - entered, "the page names files that the run does not enter"
    beside = {file for file in entered - set(named) if not file.startswith(TIMED)}
    assert len(beside) <= BESIDE[path], sorted(beside)


@pytest.mark.integration
def test_a_message_takes_the_way_of_the_page(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka)
    send(kafka, topic, [edge(1, 2, 1.0)])
    config = StreamConfig(**configuration(tmp_path / "store", kafka, topic, snapshots={"interval_s": 10}))
    metrics = StreamMetrics(config)
    with following() as entered:
        job = StreamJob(config, metrics)
        running = threading.Thread(target=job.run)
        running.start()
        try:
            reached(lambda: metrics.totals.events == 1)  # connected; from here on messages only
            entered.on = True
            send(kafka, topic, [edge(2, 3, 2.0), edge(3, 4, 31.0), b"no event"])
            reached(lambda: metrics.totals.snapshots == 1)
        finally:
            entered.on = False
            job.stop()
            running.join()
    require_tour("message", MESSAGE, entered.files)


def test_an_event_takes_the_way_of_the_page(tmp_path: Path) -> None:
    lane = make_lane(tmp_path, events=meetings(features=False))
    session = session_on(lane, "sequential", "tgn-history")
    trainer = SnapshotTrainer(session)
    trainer.learn(examples_of(session, 0), 1.0)  # compiles, and looks options up
    with following() as entered:
        entered.on = True
        trainer.learn(examples_of(session, 1), 1.0)
        entered.on = False
    require_tour("event", EVENT, entered.files)
