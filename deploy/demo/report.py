"""What the demo leaves behind: a short table, a figure of the same over time, and both as JSON.

The figure is drawn from the JSON alone: python deploy/demo/report.py report.json report.png draws it again.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from figures import SCORERS, Reading
from rich.console import Console
from rich.table import Table

from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.reader import LogReader

if TYPE_CHECKING:  # matplotlib is loaded only once there is something to draw
    from matplotlib.axes import Axes

INK, FAINT = "#1f2933", "#9aa5b1"
SCORER_COLOURS = {
    "model": "#0b6e99", "recency": "#d98e04", "recency_popularity": "#2f9e6e", "edgebank": "#9b51a0", "random": "#9aa5b1",
}  # fmt: skip
SCORER_NAMES = {
    "model": "model", "recency": "Recency", "recency_popularity": "Recency × popularity", "edgebank": "EdgeBank",
    "random": "random weights",
}  # fmt: skip
LANE_COLOURS = ("#0b6e99", "#2f9e6e", "#c2577a", "#d98e04")


@dataclass(frozen=True)
class LaneHistory:
    """A lane over its snapshots: parallel lists, oldest first."""

    name: str
    kind: str
    at_s: list[float]
    cut: list[float]
    balance: list[float]
    stored: list[int]
    full: list[int]

    @property
    def saving(self) -> float:
        """1 − bytes stored / bytes of full snapshots, over the whole run."""
        return 1 - sum(self.stored) / max(1, sum(self.full))


@dataclass(frozen=True)
class Flow:
    """Events over the run, a reading per second: parallel lists."""

    at_s: list[float]
    logged: list[int]
    learned: list[int]


@dataclass(frozen=True)
class Outcome:
    """The finished run.

    Attributes:
        sent: Events that the producer sent.
        flow: Events in the log, and learned, by seconds since the stream began.
        interval_s: Length of a snapshot.
        snapshots: Sealed.
        events: In the log.
        lanes: By name.
        scores: By snapshot: end of its interval in seconds since the first event, and AP by scorer.
        freshness_s: By snapshot: seconds from its newest event to its being in the weights.
        oldest_freshness_s: The same from its oldest event.
    """

    sent: int
    flow: Flow
    interval_s: float
    snapshots: int
    events: int
    lanes: Sequence[LaneHistory]
    scores: Sequence[tuple[float, Mapping[str, float]]]
    freshness_s: Sequence[float]
    oldest_freshness_s: Sequence[float]

    def mean_score(self, scorer: str) -> float | None:
        """Mean AP over the second half of the run, when what can be learned was seen."""
        values = [scores[scorer] for _, scores in self.scores[len(self.scores) // 2 :] if scorer in scores]
        return sum(values) / len(values) if values else None


def gather(store: Path, sent: int, readings: Sequence[Reading], score_file: Path) -> Outcome:
    """Read the finished run back from what it wrote.

    Args:
        store: The store's folder.
        sent: Events that the producer sent.
        readings: What was seen on the way.
        score_file: The trainer's lines, one a snapshot.
    """
    log = LogReader(store)
    interval_s = log.header.interval_us / 1e6
    first = log.snapshots[0].tau * interval_s
    lanes = []
    for folder in sorted((store / "lanes").iterdir()):
        lane = LaneReader(store, folder.name)
        lanes.append(
            LaneHistory(
                name=folder.name,
                kind=lane.header.kind,
                at_s=[(m.tau + 1) * interval_s - first for m in lane.manifests],
                cut=[m.quality.cut for m in lane.manifests],
                balance=[m.quality.node_balance for m in lane.manifests],
                stored=[sum(part.bytes for part in m.parts) for m in lane.manifests],
                full=[sum(part.full_bytes for part in m.parts) for m in lane.manifests],
            )
        )
    lines = [json.loads(line) for line in score_file.read_text(encoding="utf-8").splitlines()]
    return Outcome(
        sent=sent,
        flow=Flow(
            at_s=[reading.at_s - first for reading in readings],
            logged=[reading.events for reading in readings],
            learned=[reading.trained for reading in readings],
        ),
        interval_s=interval_s,
        snapshots=len(log.snapshots),
        events=sum(snapshot.num_events for snapshot in log.snapshots),
        lanes=lanes,
        scores=[((line["tau"] + 1) * interval_s - first, _average_precisions(line)) for line in lines],
        freshness_s=[line["wall_time"] - line["t_max"] for line in lines],
        oldest_freshness_s=[line["wall_time"] - line["t_min"] for line in lines],
    )


def write_json(outcome: Outcome, path: Path) -> None:
    """Write the figures of table and picture, a line for each."""
    content = {
        "sent": outcome.sent,
        "events": outcome.events,
        "snapshots": outcome.snapshots,
        "interval_s": outcome.interval_s,
        "ap_second_half": {scorer: outcome.mean_score(scorer) for scorer in SCORERS},
        "ap": [{"at_s": at_s, **scores} for at_s, scores in outcome.scores],
        "flow": asdict(outcome.flow),
        "lanes": {lane.name: {**asdict(lane), "saving": lane.saving} for lane in outcome.lanes},
        "freshness_s": outcome.freshness_s,
        "oldest_freshness_s": outcome.oldest_freshness_s,
    }
    lines = (f" {json.dumps(key)}: {json.dumps(_rounded(value))}" for key, value in content.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def read_json(path: Path) -> Outcome:
    """Read what ``write_json`` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return Outcome(
        sent=content["sent"],
        flow=Flow(**content["flow"]),
        interval_s=content["interval_s"],
        snapshots=content["snapshots"],
        events=content["events"],
        lanes=[
            LaneHistory(**{key: value for key, value in lane.items() if key != "saving"})
            for lane in content["lanes"].values()
        ],
        scores=[
            (line["at_s"], {scorer: line[scorer] for scorer in SCORERS if scorer in line})
            for line in content["ap"]
        ],
        freshness_s=content["freshness_s"],
        oldest_freshness_s=content["oldest_freshness_s"],
    )


def print_tables(outcome: Outcome, console: Console) -> None:
    """Print the short tables."""
    lost = outcome.sent - outcome.events
    account = "none lost, none twice" if lost == 0 else f"{lost:,} missing"
    console.print(
        f"\n[bold]{outcome.events:,} events[/] in the log of {outcome.sent:,} sent ({account}), "
        f"[bold]{outcome.snapshots} snapshots[/] of {outcome.interval_s:g} s\n",
        highlight=False,
        soft_wrap=True,
    )
    lanes = Table(title="Lanes", title_justify="left", title_style="bold")
    for title in ("lane", "kind"):
        lanes.add_column(title)
    for title in ("cut or discarded", "node balance", "storage saved"):
        lanes.add_column(title, justify="right")
    for lane in outcome.lanes:
        lanes.add_row(
            lane.name, lane.kind, f"{lane.cut[-1]:.3f}", f"{lane.balance[-1]:.3f}", f"{lane.saving:.1%}"
        )
    console.print(lanes)
    scores = Table(
        title="Average precision, each snapshot scored before it is learned",
        title_justify="left",
        title_style="bold",
    )
    marks = _marks(len(outcome.scores))
    scores.add_column("snapshot", no_wrap=True)
    for index in marks:
        scores.add_column(f"{index + 1}", justify="right")
    scores.add_column("2nd half", justify="right")
    for scorer in SCORERS:
        mean = outcome.mean_score(scorer)
        scores.add_row(
            SCORER_NAMES[scorer],
            *(_figure(outcome.scores[index][1].get(scorer)) for index in marks),
            _figure(mean),
            style="bold" if scorer == "model" else "",
        )
    console.print(scores)
    if outcome.freshness_s:
        newest, oldest = median(outcome.freshness_s), median(outcome.oldest_freshness_s)
        console.print(
            f"\nFreshness, from a snapshot's newest event to its being in the weights: [bold]{newest:.1f} s[/] in the median; "
            f"oldest freshness, from its oldest event: {oldest:.1f} s",
            highlight=False,
            soft_wrap=True,
        )


def draw(outcome: Outcome, path: Path) -> None:
    """Draw the run over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    style = {
        "font.size": 10,
        "font.family": "DejaVu Sans",
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e4e7eb",
        "grid.linewidth": 0.8,
        "axes.axisbelow": True,
        "axes.titlelocation": "left",
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlecolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "legend.frameon": False,
    }
    with mpl.rc_context(style):
        figure = plt.figure(figsize=(13, 8.2), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.14)  # type: ignore[union-attr]
        grid = figure.add_gridspec(2, 6, height_ratios=(1.25, 1))
        _draw_scores(figure.add_subplot(grid[0, :4]), outcome)
        _draw_flow(figure.add_subplot(grid[0, 4:]), outcome)
        _draw_lanes(figure.add_subplot(grid[1, :2]), outcome, "cut", "Cut; for sep: discarded")
        _draw_lanes(figure.add_subplot(grid[1, 2:4]), outcome, "balance", "Node balance, max / mean")
        _draw_storage(figure.add_subplot(grid[1, 4:]), outcome)
        figure.suptitle(
            f"Freshet demo: {outcome.events:,} events in {outcome.snapshots} snapshots, scored before they are learned",
            x=0.008,
            ha="left",
            fontsize=14,
            fontweight="bold",
            color=INK,
        )
        figure.savefig(path, dpi=130, facecolor="white")
        plt.close(figure)


def _draw_scores(axes: "Axes", outcome: Outcome) -> None:
    ends: list[tuple[float, str]] = []
    for scorer in reversed(SCORERS):
        points = [(at_s, scores[scorer]) for at_s, scores in outcome.scores if scorer in scores]
        if not points:
            continue
        at_s, values = zip(*points, strict=True)
        bold = scorer == "model"
        axes.plot(
            at_s, values, color=SCORER_COLOURS[scorer], lw=2.6 if bold else 1.6, zorder=3 if bold else 2
        )
        ends.append((values[-1], scorer))
    right = max((at_s for at_s, _ in outcome.scores), default=1.0)
    for y, scorer in _apart(ends, 0.03):
        mean = outcome.mean_score(scorer)
        label = f"{SCORER_NAMES[scorer]}  {mean:.2f}" if mean is not None else SCORER_NAMES[scorer]
        weight = "bold" if scorer == "model" else "normal"
        axes.annotate(
            label, (right, y), xytext=(8, 0), textcoords="offset points", va="center",
            color=SCORER_COLOURS[scorer], fontweight=weight, annotation_clip=False,
        )  # fmt: skip
    axes.set(title="Average precision per snapshot, before learning it (right: mean of the second half)")
    axes.set(xlabel="seconds of the stream", xlim=(0, right * 1.26))
    low = min((value for _, scores in outcome.scores for value in scores.values()), default=0.4)
    axes.set_ylim(min(0.4, low - 0.03), 1.0)


def _draw_flow(axes: "Axes", outcome: Outcome) -> None:
    for label, colour, values in [
        ("in the log", "#0b6e99", outcome.flow.logged),
        ("learned (interactions only)", "#2f9e6e", outcome.flow.learned),
    ]:
        axes.plot(outcome.flow.at_s, [value / 1000 for value in values], color=colour, lw=2.2, label=label)
    axes.set(title="Events, thousands", xlabel="seconds of the stream")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.legend(loc="best")


def _draw_lanes(axes: "Axes", outcome: Outcome, what: str, title: str) -> None:
    for lane, colour in zip(outcome.lanes, LANE_COLOURS, strict=False):
        axes.plot(lane.at_s, getattr(lane, what), color=colour, lw=2)
    right = max((lane.at_s[-1] for lane in outcome.lanes), default=1.0)
    axes.set(title=title, xlabel="seconds of the stream", xlim=(0, right * 1.2))
    if what == "cut":
        axes.set_ylim(bottom=0)
    low, high = axes.get_ylim()
    colours = dict(zip((lane.name for lane in outcome.lanes), LANE_COLOURS, strict=False))
    for y, name in _apart(
        [(getattr(lane, what)[-1], lane.name) for lane in outcome.lanes], (high - low) * 0.07
    ):
        axes.annotate(
            name, (right, y), xytext=(6, 0), textcoords="offset points", va="center",
            color=colours.get(name, INK), fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def _draw_storage(axes: "Axes", outcome: Outcome) -> None:
    lanes = list(outcome.lanes)
    positions = range(len(lanes))
    full = [sum(lane.full) / 2**20 for lane in lanes]
    stored = [sum(lane.stored) / 2**20 for lane in lanes]
    axes.barh(positions, full, color="#e4e7eb", height=0.56, label="full snapshots")
    axes.barh(positions, stored, color=list(LANE_COLOURS[: len(lanes)]), height=0.56)
    for y, lane in enumerate(lanes):
        axes.text(full[y], y, f" saved {lane.saving:.0%}", va="center", color=INK, fontweight="bold")
    axes.set_yticks(list(positions), [lane.name for lane in lanes])
    axes.set(title="Stored of full snapshots, MiB", xlim=(0, max(full, default=1.0) * 1.32))
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()


def _rounded(value: Any) -> Any:
    """Numbers with five digits after the point, in lists and mappings too."""
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def _average_precisions(line: Mapping[str, float]) -> dict[str, float]:
    keys = {scorer: "ap" if scorer == "model" else f"{scorer}_ap" for scorer in SCORERS}
    return {scorer: line[key] for scorer, key in keys.items() if key in line}


def _apart(ends: list[tuple[float, str]], least: float) -> list[tuple[float, str]]:
    """Move labels up so that no two overlap."""
    placed: list[tuple[float, str]] = []
    for y, name in sorted(ends):
        placed.append((max(y, placed[-1][0] + least) if placed else y, name))
    return placed


def _marks(count: int, most: int = 6) -> list[int]:
    """At most so many indices, evenly spread, the last one among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def draw_from(data: Path, picture: Path) -> None:
    """Draw a run from its JSON."""
    draw(read_json(data), picture)


if __name__ == "__main__":
    draw_from(Path(sys.argv[1]), Path(sys.argv[2]))
