"""Simulated clusters of any size: the length of an epoch by the number of GPUs (DyGNeX 5.4)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from freshet_graph.schemas.errors import system_call
from freshet_graph.stream.arrays.kinds import Float64
from freshet_graph.stream.optional import package
from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import Problem, SearchLimits
from freshet_graph.trainer.strategies.dygnex.scheduling.solve import solve

_INK, _FAINT = "#1f2933", "#9aa5b1"
_COLOURS = {
    "greedy": "#2f6f9f", "paper": "#c8713a", "ilp": "#4f8a4f", "psg": "#9aa5b1", "psg-sorted": "#7a5c99",
}  # fmt: skip


def simulate(
    times_s: Float64, gpus: Sequence[int], algorithms: Sequence[str], alpha_s: float, limits: SearchLimits
) -> list[dict[str, Any]]:
    """Schedule the same groups for clusters of several sizes by algorithms of ``ALGORITHMS``.

    Returns:
        A point for each algorithm and number of GPUs: the figures of ``solve``, and ``throughput`` in groups per second.
    """
    solved = [
        solve(Problem(times_s, count, alpha_s=alpha_s), algorithm, limits).figures()
        for algorithm in algorithms
        for count in gpus
    ]
    return [
        {**figures, "throughput": len(times_s) / figures["epoch_s"] if figures["epoch_s"] else float("nan")}
        for figures in solved
    ]


def draw(points: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """Draw efficiency and imbalance over the number of GPUs, as in the paper's figure 5, a PNG."""
    mpl = package("matplotlib", "a drawing")
    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import ScalarFormatter

    style = {
        "font.size": 9, "axes.edgecolor": _FAINT, "axes.spines.top": False, "axes.spines.right": False,
        "axes.titlelocation": "left", "axes.titlesize": 10, "axes.titlecolor": _INK, "xtick.color": _INK,
        "ytick.color": _INK,
    }  # fmt: skip
    panels = {"efficiency": "Share of GPU time spent training", "imbalance": "Busiest GPU over least busy"}
    with mpl.rc_context(style):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
        for one, (key, name) in zip(axes, panels.items(), strict=True):
            for algorithm in dict.fromkeys(point["algorithm"] for point in points):
                of_algorithm = [point for point in points if point["algorithm"] == algorithm]
                gpus, values = (
                    [point["gpus"] for point in of_algorithm],
                    [point[key] for point in of_algorithm],
                )
                one.plot(
                    gpus, values, marker="o", markersize=3, label=algorithm, color=_COLOURS.get(algorithm)
                )
            one.set_xscale("log", base=2)
            one.xaxis.set_major_formatter(ScalarFormatter())
            one.set_xlabel("GPUs")
            one.set_title(name)
        axes[0].set_ylim(top=1.0 + 0.02)
        axes[0].legend(frameon=False)
        figure.suptitle(title, x=0.008, ha="left", fontweight="bold", color=_INK)
        with system_call("write", path):
            figure.savefig(path, dpi=130, facecolor="white", format="png")
        plt.close(figure)
