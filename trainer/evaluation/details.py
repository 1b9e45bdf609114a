"""Files beside the figures of an evaluation: a row per test snapshot, a row per test event, and a picture."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import structlog
from numpy.typing import NDArray

from freshet_graph.schemas.errors import system_call
from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.data.history import Inserts
from freshet_graph.trainer.evaluation.matrix import BASELINES
from freshet_graph.trainer.scoring.metrics import Figures

if TYPE_CHECKING:  # loaded only once there is something to draw
    from matplotlib.axes import Axes

log = structlog.get_logger()

_INK, _FAINT, _MODEL = "#1f2933", "#9aa5b1", "#2f6f9f"
_OTHERS = ("#c8713a", "#5b8c5a", "#8a6bb1", "#b8a038", "#6b7b8c", "#a65a6a")
_DATED_S = 631_152_000.0
"""1990: earlier times are taken for relative ones, and shown as seconds."""


class JudgedSnapshot(Protocol):
    """The part of an ``Evaluation`` that these files show."""

    @property
    def scored(self) -> int:
        """See ``Evaluation.scored``."""
        ...

    def figures(self) -> Figures:
        """See ``Evaluation.figures``."""
        ...

    def rows(self) -> dict[str, NDArray[Any]]:
        """See ``Evaluation.rows``."""
        ...


@dataclass(slots=True)
class Details:
    """The files that an evaluation is asked for; a path that is None is not written.

    Attributes:
        per_snapshot: Parquet, a row per seed and test snapshot: ``seed, tau, begins, ends, scored`` and figures.
        plot: PNG of one figure over the test snapshots.
        scores_out: Parquet, or CSV by its name: a row per seed and test event, or node of a test snapshot.
    """

    per_snapshot: Path | None = None
    plot: Path | None = None
    scores_out: Path | None = None
    _snapshots: list[dict[str, Any]] = field(default_factory=list)
    _rows: list[dict[str, NDArray[Any]]] = field(default_factory=list)

    @property
    def _files(self) -> dict[str, Path]:
        files = {"--per-snapshot": self.per_snapshot, "--plot": self.plot, "--scores-out": self.scores_out}
        return {option: file for option, file in files.items() if file is not None}

    def require_writable(self) -> None:
        """Check all files before hours of work.

        Raises:
            Failure: One cannot be written, or its name has the ending of another format.
        """
        for option, file in self._files.items():
            if file.is_dir() or not file.parent.is_dir():
                raise Failure(f"{option} {file}: it must be a file in a folder that exists")
        if self.plot is not None and self.plot.suffix.lower() != ".png":
            raise Failure(f"--plot {self.plot}: the picture is a PNG. End the name in .png")

    def take(self, seed: int | None, judged: Sequence[tuple[int, JudgedSnapshot]], named: Any) -> None:
        """Keep one repetition.

        Args:
            seed: Its seed; None: it has none.
            judged: τ and evaluation of each test snapshot.
            named: Gives figures the names that they have in results.
        """
        for tau, evaluation in judged if self.per_snapshot or self.plot else ():
            figures: Mapping[str, float] = named(evaluation.figures())
            self._snapshots.append({"seed": seed, "tau": tau, "scored": evaluation.scored, **figures})
        for tau, evaluation in judged if self.scores_out else ():
            rows = evaluation.rows()
            count = len(next(iter(rows.values())))
            self._rows.append({"seed": np.full(count, seed), "tau": np.full(count, tau), **rows})

    def write(self, lane: LaneReader, inserts: Inserts, metric: str, title: str) -> None:
        """Write the files.

        Args:
            lane: Of the evaluation.
            inserts: All of its insert events, in log order.
            metric: The figure of the picture.
            title: Above the picture.

        Raises:
            OSError: The disk refuses.
        """
        for option, file in self._files.items():
            if not (self._rows if file is self.scores_out else self._snapshots):
                log.warning("not written, because the test judged nothing", option=option, file=str(file))
                continue
            with system_call("write", file):
                if file is self.per_snapshot:
                    pq.write_table(self._snapshot_table(lane), file)
                elif file is self.plot:
                    self._draw(lane, metric, title, file)
                elif file.suffix.lower() == ".csv":
                    pyarrow.csv.write_csv(self._score_table(lane, inserts), file)
                else:
                    pq.write_table(self._score_table(lane, inserts), file, compression="zstd")

    def _snapshot_table(self, lane: LaneReader) -> pa.Table:
        interval_us = lane.header.interval_us
        names = dict.fromkeys(key for row in self._snapshots for key in row)
        columns = {name: pa.array([row.get(name) for row in self._snapshots]) for name in names}
        tau = np.array([row["tau"] for row in self._snapshots], np.int64)
        moment = pa.timestamp("us", "UTC")
        spans = {
            "begins": pa.array(tau * interval_us, moment),
            "ends": pa.array((tau + 1) * interval_us, moment),
        }
        return pa.table({"seed": columns.pop("seed"), "tau": columns.pop("tau"), **spans, **columns})

    def _score_table(self, lane: LaneReader, inserts: Inserts) -> pa.Table:
        columns = {name: np.concatenate([rows[name] for rows in self._rows]) for name in self._rows[0]}
        seed, tau = columns.pop("seed"), columns.pop("tau")
        ids = lane.log.external_ids().combine_chunks()
        if "event" in columns:
            event = _first_events(lane, tau) + columns.pop("event")
            item = {
                "event": event,
                "src": ids.take(pa.array(inserts.src[event])),
                "dst": ids.take(pa.array(inserts.dst[event])),
                "t": inserts.visible_us[event] / US_PER_S,
            }
        else:
            ends_s = (tau + 1) * lane.header.interval_us / US_PER_S
            item = {"tau": tau, "node": ids.take(pa.array(columns.pop("node"))), "t": ends_s}
        scores = {name: pa.array(values, from_pandas=True) for name, values in columns.items()}  # NaN is null
        return pa.table({"seed": seed, **item, **scores})

    def _draw(self, lane: LaneReader, metric: str, title: str, file: Path) -> None:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt

        style = {
            "font.size": 9,
            "font.family": "DejaVu Sans",
            "axes.edgecolor": _FAINT,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "xtick.color": _INK,
            "ytick.color": _INK,
        }
        with mpl.rc_context(style):
            figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
            self._lines(axes, lane, metric)
            axes.set_ylabel(metric)
            axes.set_title(title, loc="left", fontweight="bold", color=_INK)
            figure.savefig(file, dpi=130, facecolor="white", format="png")
            plt.close(figure)

    def _lines(self, axes: "Axes", lane: LaneReader, metric: str) -> None:
        """A line of means over the seeds for the model and each baseline; the model's band is from the least to the largest."""
        scorers = {"model": metric, **{one: f"{one}_{metric}" for one in ("random", *BASELINES)}}
        taus = sorted({row["tau"] for row in self._snapshots})
        ends_s = [(tau + 1) * lane.header.interval_us / US_PER_S for tau in taus]
        is_dated = ends_s[0] >= _DATED_S
        times: list[Any] = [datetime.fromtimestamp(end_s, UTC) for end_s in ends_s] if is_dated else ends_s
        axes.set_xlabel("end of the snapshot" + (", UTC" if is_dated else ", seconds"))
        colours = iter(_OTHERS * 2)
        for scorer, column in scorers.items():
            by_tau: list[list[float]] = [
                [row[column] for row in self._snapshots if row["tau"] == tau and row.get(column) is not None]
                for tau in taus
            ]
            if not any(by_tau):
                continue
            is_model = scorer == "model"
            colour = _MODEL if is_model else next(colours)
            means = [float(np.mean(values)) if values else math.nan for values in by_tau]
            width, order = (2.2, 3) if is_model else (1.0, 2)
            marker = "o" if len(taus) < 40 else ""
            label = f"{scorer}, mean {np.nanmean(means):.3f}"
            axes.plot(
                times,
                means,
                label=label,
                color=colour,
                linewidth=width,
                marker=marker,
                markersize=3,
                zorder=order,
            )
            if is_model and max(map(len, by_tau)) > 1:
                low, high = ([edge(values, default=math.nan) for values in by_tau] for edge in (min, max))
                axes.fill_between(times, low, high, color=colour, alpha=0.2, linewidth=0)
        if is_dated:
            axes.figure.autofmt_xdate()
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _first_events(lane: LaneReader, tau: Int64) -> Int64:
    """The number of the first insert event of each snapshot, int64 (n,), among all of the log."""
    counts = {snapshot.tau: snapshot.num_inserts for snapshot in lane.log.snapshots}
    taus = np.array(list(counts), np.int64)
    begins = np.cumsum([0, *counts.values()])[:-1]
    return begins[np.searchsorted(taus, tau)]
