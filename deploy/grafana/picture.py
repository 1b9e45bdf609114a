#!/usr/bin/env python3
"""Draw rows of the dashboard from a Prometheus, without Grafana.

    python deploy/grafana/picture.py --prometheus http://127.0.0.1:9090 --minutes 3 --figure dashboard.png --rows Freshness Flow

Panels, queries and places are those of ``dashboards/freshet.json``; colours and axes are matplotlib's. The figures stand beside
the picture as JSON, from which ``draw_from`` draws it again.
"""

import argparse
import json
import re
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

DASHBOARD = Path(__file__).parent / "dashboards/freshet.json"
WIDTH = 24
"""Columns of Grafana's grid."""
POINTS = 60
UNITS = {"s": ("s", 1.0), "bytes": ("MiB", 2.0**-20), "percentunit": ("%", 100.0), "eps": ("events/s", 1.0),
         "Bps": ("MiB/s", 2.0**-20), "dateTimeAsIso": ("s", 1e-3), "short": ("", 1.0)}  # fmt: skip
"""By Grafana's unit: how it is shown, and the factor."""


def main() -> None:
    """Ask for every panel of the named rows, and draw them."""
    parser = argparse.ArgumentParser(description="Draw rows of the dashboard from a Prometheus.")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="its address")
    parser.add_argument("--minutes", type=float, default=60.0, help="how far to look back")
    parser.add_argument(
        "--rate-interval", default="1m", help="what $__rate_interval stands for: four scrape intervals"
    )
    parser.add_argument("--rows", nargs="*", help="titles of rows; default: all")
    parser.add_argument("--figure", type=Path, default=Path("dashboard.png"))
    arguments = parser.parse_args()
    end_s = time.time()
    begin_s = end_s - 60 * arguments.minutes
    sections = rows(json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"], arguments.rows)
    for section in sections:
        for panel in section["panels"]:
            for name, query in panel.pop("queries"):
                expression = query.replace("$graph", ".+").replace(
                    "$__rate_interval", arguments.rate_interval
                )
                for labels, points in asked(arguments.prometheus, expression, begin_s, end_s):
                    label = legend(name, labels)
                    right = any(re.fullmatch(pattern, label) for pattern in panel["right"])
                    factor = 1.0 if right else UNITS[panel["unit"]][1]
                    shown = [
                        [round((at - begin_s) / 60, 2), float(f"{value * factor:.4g}")]
                        for at, value in points
                    ]
                    panel["series"].append({"legend": label, "right": right, "points": shown})
    data = arguments.figure.with_suffix(".json")
    data.write_text(json.dumps(sections), encoding="utf-8")
    draw_from(data, arguments.figure)
    print(f"{arguments.figure}: {sum(len(section['panels']) for section in sections)} panels")


def rows(panels: list[dict[str, Any]], wanted: list[str] | None) -> list[dict[str, Any]]:
    """Panels by row, each with its place when the other rows are folded."""
    sections: list[dict[str, Any]] = []
    at = top = 0
    for panel in panels:
        place = panel["gridPos"]
        if panel["type"] == "row":
            at = max([at, *(one["y"] + one["h"] for section in sections for one in section["panels"])])
            sections.append({"title": panel["title"], "panels": []})
            top = place["y"]
        elif not wanted or sections[-1]["title"] in wanted:
            queries = [(target.get("legendFormat", ""), target["expr"]) for target in panel["targets"]]
            unit = panel["fieldConfig"]["defaults"].get("unit", "short")
            overrides = panel["fieldConfig"].get("overrides", [])
            right = [
                each["matcher"]["options"] for each in overrides if "axisPlacement" in str(each["properties"])
            ]
            about = {"title": panel["title"], "type": panel["type"], "unit": unit, "right": right}
            sections[-1]["panels"].append(
                {**place, "y": at + place["y"] - top, **about, "queries": queries, "series": []}
            )
    return [section for section in sections if section["panels"]]


def asked(
    prometheus: str, query: str, begin_s: float, end_s: float
) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    """Labels and points of each series of a query."""
    values = {"query": query, "start": begin_s, "end": end_s, "step": (end_s - begin_s) / POINTS}
    url = f"{prometheus}/api/v1/query_range?{urllib.parse.urlencode(values)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        result = json.load(answer)["data"]["result"]
    numbers = [(one["metric"], [(float(at), float(value)) for at, value in one["values"]]) for one in result]
    return [
        (labels, finite)
        for labels, points in numbers
        if (finite := [(at, v) for at, v in points if abs(v) < 1e300])
    ]


def legend(form: str, labels: dict[str, str]) -> str:
    """The name of a series, as Grafana makes it."""
    return re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), form)


def draw_from(data: Path, picture: Path) -> None:
    """Draw what ``main`` left."""
    sections = json.loads(data.read_text(encoding="utf-8"))
    height = max(panel["y"] + panel["h"] for section in sections for panel in section["panels"])
    figure = plt.figure(figsize=(16, height * 0.36))
    for section in sections:
        for number, panel in enumerate(section["panels"]):
            bottom = 1 - (panel["y"] + panel["h"]) / height
            place = (
                panel["x"] / WIDTH + 0.025,
                bottom + 0.9 / height,
                panel["w"] / WIDTH - 0.035,
                (panel["h"] - 2) / height,
            )
            axes = figure.add_axes(place)
            title = f"{section['title']}: {panel['title']}" if number == 0 else panel["title"]
            axes.set_title(title, fontsize=9, loc="left", fontweight="bold" if number == 0 else "normal")
            draw(axes, panel)
    figure.savefig(picture, dpi=70)
    plt.close(figure)


def draw(axes: Axes, panel: dict[str, Any]) -> None:
    """One panel."""
    unit = UNITS[panel["unit"]][0]
    if not panel["series"]:
        axes.text(0.5, 0.5, "No data", ha="center", va="center", transform=axes.transAxes, color="0.5")
    if panel["type"] == "stat" or not panel["series"]:
        axes.set_axis_off()
        for series in panel["series"]:
            axes.text(
                0.5, 0.5, f"{series['points'][-1][1]:.3g} {unit}", ha="center", va="center", fontsize=20
            )
        return
    beside = axes.twinx() if any(series["right"] for series in panel["series"]) else axes
    for series in panel["series"]:
        style = {"linestyle": ":"} if series["right"] else {}
        (beside if series["right"] else axes).plot(
            *zip(*series["points"], strict=True), label=series["legend"], linewidth=1.2, **style
        )
    axes.set_ylabel(unit, fontsize=7)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    if any(series["legend"] for series in panel["series"]):
        axes.legend(fontsize=6, frameon=False, ncols=2, loc="best")


if __name__ == "__main__":
    main()
