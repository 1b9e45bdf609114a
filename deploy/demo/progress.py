"""What the demo shows while it runs: a live panel on a terminal, a line every few seconds elsewhere."""

import time
from types import TracebackType
from typing import Self

from figures import SCORERS, Reading
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_EVERY_S = 5.0
_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {
    "model": "bold cyan", "recency": "yellow", "recency_popularity": "green", "edgebank": "magenta", "random": "dim",
}  # fmt: skip


class Progress:
    """Shows readings as they come.

    Args:
        console: Where; a terminal gets the live panel.
        total: Events that the producer sends in all.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._started = time.monotonic()
        self._last_line = -LINE_EVERY_S
        self._scores: list[dict[str, float]] = []
        self._live = (
            Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, phase: str, sent: int, reading: Reading) -> None:
        """Show where things stand."""
        if reading.scores and (not self._scores or reading.scores != self._scores[-1]):
            self._scores.append(dict(reading.scores))
        if self._live:
            self._live.update(self._panel(phase, sent, reading))
        elif time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            self._console.print(_line(self._elapsed(), phase, sent, self._total, reading), soft_wrap=True)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _panel(self, phase: str, sent: int, reading: Reading) -> Panel:
        flow = Table.grid(padding=(0, 3))
        flow.add_row(
            *(
                Text.assemble((f"{value}\n", "bold"), (label, "dim"))
                for value, label in [
                    (f"{sent:,}", "events sent"),
                    (f"{reading.events:,}", "in the log"),
                    (f"{reading.lag:,}", "unread (lag)"),
                    (f"{reading.snapshots:,}", "snapshots sealed"),
                    (f"{reading.trained:,}", "events trained"),
                    (_seconds(reading.weights_age_s), "age of the weights"),
                ]
            )
        )
        body = Group(
            ProgressBar(total=self._total, completed=sent, width=None),
            Text(),
            flow,
            Text(),
            _lanes(reading),
            Text(),
            self._model(reading),
        )
        title = f"Freshet demo · {phase} · {self._elapsed():.0f} s"
        return Panel(body, title=title, title_align="left", border_style="blue")

    def _model(self, reading: Reading) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("test-then-train", width=18)
        table.add_column("AP", justify="right", width=7)
        table.add_column("snapshot by snapshot (0.4 to 1)")
        for scorer in SCORERS:
            history = [scores[scorer] for scores in self._scores if scorer in scores]
            table.add_row(
                Text(scorer, style=_STYLES[scorer]),
                _ratio(reading.scores.get(scorer)),
                Text(_sparkline(history[-50:]), style=_STYLES[scorer]),
            )
        return table


def _lanes(reading: Reading) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("lane", width=16)
    for title in ("cut", "balance", "saved", "behind"):
        table.add_column(title, justify="right", width=9)
    for name, lane in sorted(reading.lanes.items()):
        behind = "–" if lane.lag is None else f"{lane.lag:.0f}"
        table.add_row(name, _ratio(lane.cut), _ratio(lane.balance), _ratio(lane.saving), behind)
    return table


def _line(elapsed: float, phase: str, sent: int, total: int, reading: Reading) -> str:
    cuts = ", ".join(f"{name} {_ratio(lane.cut)}" for name, lane in sorted(reading.lanes.items()))
    scores = ", ".join(
        f"{scorer} {_ratio(reading.scores.get(scorer))}" for scorer in SCORERS if reading.scores
    )
    return (
        f"{elapsed:4.0f} s  {phase}: sent {sent:,} of {total:,}, in the log {reading.events:,}, lag {reading.lag:,}, "
        f"snapshots {reading.snapshots}"
        + (f" | cut {cuts}" if cuts else "")
        + (f" | AP {scores}" if scores else "")
        + (
            f" | age of the weights {_seconds(reading.weights_age_s)}"
            if reading.weights_age_s is not None
            else ""
        )
    )


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} s"


def _sparkline(values: list[float], low: float = 0.4, high: float = 1.0) -> str:
    steps = [(min(max(value, low), high) - low) / (high - low) for value in values]
    return "".join(_BARS[min(int(step * len(_BARS)), len(_BARS) - 1)] for step in steps)
