"""A run is sent to its tracker from the score file and the checkpoint folder, beside training."""

import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.schemas.version import version
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual.journal import ScoreFile
from freshet_graph.trainer.continual.model_card import model_card
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.session.checkpoint import Checkpoints
from freshet_graph.trainer.trackers.interface import TRACKERS, TrackedRun, Tracker

log = structlog.get_logger()

EVERY_S = 2.0
"""Seconds between two looks at the score file."""

PATIENCE_S = 60.0
"""Longest pause after a failure; it doubles from ``EVERY_S`` on."""

ENDING_S = 15.0
"""How long the end of a run waits for the tracker. What it has not sent by then, the next start sends."""

UPLOAD_EVERY_S = 3600.0
"""Seconds between two uploads of a checkpoint, because services keep every one."""

CARD = "model-card.md"


class Tracking:
    """Sends a run, on rank 0, from a thread of its own.

    The score file is what is sent, so a tracker that fails for hours misses nothing, and a run that was killed continues
    where it stood. ``tracker.json`` in the checkpoint folder has the service's id of the run, and the number of the last
    snapshot sent. It is written after sending, so that a crash in between sends some figures again, which are the same.

    Args:
        config: The configuration, whose key ``tracker`` is set.
        lane: The lane that is learned.
        metrics: Failures are counted there.
    """

    def __init__(self, config: TrainerConfig, lane: LaneReader, metrics: TrainerMetrics) -> None:
        assert config.tracker is not None
        self._config, self._metrics = config, metrics
        self._name = config.tracker
        self._options = TRACKERS.options(config.tracker, config.tracker_params)
        self._run = run_of(config, lane)
        self._scores = ScoreFile(config.checkpoint)
        self._checkpoints = Checkpoints(config.checkpoint, config.keep_checkpoints)
        self._state = TrackerState(Path(config.checkpoint) / "tracker.json")
        self._tracker: Tracker | None = None
        self._offset = 0  # bytes of the score file that were looked at
        self._uploaded: Path | None = None
        self._upload_after = 0.0
        self._failing = False
        self._ending, self._failed = threading.Event(), False
        self._thread = threading.Thread(target=self._follow, name="tracker", daemon=True)

    def __enter__(self) -> Self:
        if not self._scores.path.exists() or not self._scores.path.stat().st_size:
            self._state.forget()  # training begins without a checkpoint
        self._state.load(self._name)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._failed = kind is not None
        self._ending.set()
        self._thread.join(ENDING_S)

    def _follow(self) -> None:
        pause_s = EVERY_S
        while True:
            is_ending = self._ending.wait(pause_s)
            try:
                self._send(is_ending=is_ending)
            except Exception as error:  # noqa: BLE001  a tracker may raise anything, and never stops training
                self._report(error)
                self._tracker = None  # a new one: connection or login may be what is wrong
                pause_s = min(PATIENCE_S, 2 * pause_s)
            else:
                if self._failing:
                    log.info("the tracker answers again", tracker=self._name)
                self._failing, pause_s = False, EVERY_S
            if is_ending:
                return

    def _send(self, *, is_ending: bool) -> None:
        """Send what is new, one request for all of it."""
        if self._new_lines()[1] or (is_ending and self._state.run is not None):
            tracker = self._opened()
            offset, lines = self._new_lines()  # all lines, if the service no longer has the run
            new = [line for line in lines if line["sequence"] > self._state.sequence]
            if new:
                tracker.log([(figures_of(line), line["sequence"], int(line["t_max"] * 1e3)) for line in new])
                self._state.sent(new[-1]["sequence"])
            self._offset = offset
            self._upload(tracker, is_ending=is_ending)
            if is_ending:
                tracker.close(failed=self._failed)

    def _opened(self) -> Tracker:
        if self._tracker is None:
            tracker = TRACKERS.find(self._name)(self._options)  # type: ignore[call-arg]  # see Tracker
            run = tracker.open(self._run, self._state.run)
            if run != self._state.run:
                self._offset = 0
            self._state.begin(self._name, run)
            self._tracker = tracker
        return self._tracker

    def _new_lines(self) -> tuple[int, list[dict[str, Any]]]:
        """The whole lines after ``_offset``, and the offset after them."""
        if not self._scores.path.exists():
            return 0, []
        with self._scores.path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        return self._offset + len(whole), [json.loads(line) for line in whole.splitlines()]

    def _upload(self, tracker: Tracker, *, is_ending: bool) -> None:
        newest = self._checkpoints.newest_path()
        if (
            newest is None
            or newest == self._uploaded
            or not (is_ending or time.monotonic() >= self._upload_after)
        ):
            return
        card = Path(self._config.checkpoint) / CARD
        card.write_text(model_card(self._run, self._scores.lines(), newest.name), encoding="utf-8")
        try:
            tracker.upload({f"checkpoints/{newest.name}": newest, CARD: card})
        except FileNotFoundError:
            return  # a newer one took its place meanwhile
        self._uploaded, self._upload_after = newest, time.monotonic() + UPLOAD_EVERY_S

    def _report(self, error: Exception) -> None:
        self._metrics.tracker_failed()
        if not self._failing:
            log.warning(
                "the tracker fails; training goes on, and what it misses is sent later",
                tracker=self._name, error=f"{type(error).__name__}: {one_line(error)}",
            )  # fmt: skip
        self._failing = True


class TrackerState:
    """Which run a checkpoint folder belongs to, and how far it was sent.

    Args:
        path: Its file.

    Attributes:
        run: The service's id; None before the first run.
        sequence: Number of the last snapshot sent; −1 before the first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tracker = ""
        self.run: str | None = None
        self.sequence = -1

    def load(self, tracker: str) -> None:
        """Read the file, unless it is another tracker's or damaged: then a new run begins."""
        try:
            content = json.loads(self._path.read_bytes())
            if content["tracker"] == tracker:
                self.run, self.sequence = str(content["run"]), int(content["sequence"])
        except (OSError, ValueError, LookupError, TypeError):
            return

    def forget(self) -> None:
        """Begin a new run."""
        self._path.unlink(missing_ok=True)

    def begin(self, tracker: str, run: str) -> None:
        """Note the run; one with another id has got nothing yet."""
        if run != self.run:
            self.run, self.sequence = run, -1
        self._tracker = tracker
        self.sent(self.sequence)

    def sent(self, sequence: int) -> None:
        """Note that all figures up to a snapshot's were sent."""
        self.sequence = sequence
        content = {"tracker": self._tracker, "run": self.run, "sequence": sequence}
        temporary = self._path.with_suffix(".json.tmp")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(self._path)  # not synced: what is forgotten is sent again


def run_of(config: TrainerConfig, lane: LaneReader) -> TrackedRun:
    """A run's name, parameters and tags."""
    graph, name = lane.header.graph, lane.header.lane
    params = config.model_dump(mode="json", exclude={"tracker", "tracker_params", "metrics"})
    return TrackedRun(
        name=f"{graph} {name} {config.model}",
        params={key: value if isinstance(value, str) else json.dumps(value) for key, value in _flat(params)},
        tags={"freshet.version": version(), "freshet.graph": graph, "freshet.lane": name},
    )


MOMENTS = ("sequence", "tau", "t_max", "t_min", "wall_time")
"""Keys of a line that say which snapshot it is."""


def figures_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a snapshot's line but its moments, those inside of others by dotted keys."""
    return {
        key: float(value)
        for key, value in _flat(line)
        if key not in MOMENTS and isinstance(value, int | float) and math.isfinite(value)
    }


def _flat(content: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
