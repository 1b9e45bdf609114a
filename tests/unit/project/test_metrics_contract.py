"""docs/metrics.md, the dashboard and the alerts speak of the series that the code exports, and of their labels."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.trainer.arrival.service import ScorerMetrics
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.strategies.figures import declared_by
from freshet_graph.trainer.strategies.interface import STRATEGIES

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "deploy/grafana/dashboards/freshet.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
ROWS = [
    "Freshness", "Flow", "Event time", "Store", "Partition quality", "Model against floors", "Labels",
    "Training rate against arrival", "Ranks",
]  # fmt: skip
FROM_PROMETHEUS = {"up": {"job", "instance"}}
STRATEGIES.all()  # modules register once
BUILT_IN = sorted(STRATEGIES.registered)
SCRAPED = {"job", "instance", "le"}


@dataclass(frozen=True)
class Series:
    """What one metric of a registry is."""

    kind: str
    labels: tuple[str, ...]


@cache
def exported() -> dict[str, Series]:
    """All series by name; histograms by their base name."""
    stream = StreamConfig.model_validate(
        {
            "graph": "demo",
            "store": "/",
            "kafka": {"bootstrap": "127.0.0.1:1", "topics": [{"name": "edges"}]},
            "snapshots": {"interval_s": 60},
        }
    )
    found: dict[str, Series] = {}
    trainers = [TrainerMetrics(TrainerConfig(strategy=name), 0) for name in BUILT_IN]
    for metrics in (StreamMetrics(stream), ScorerMetrics(), *trainers):
        found |= dict(series_of(metrics.registry))
    return found


def series_of(registry: CollectorRegistry) -> Iterator[tuple[str, Series]]:
    # A metric whose labels have no value yet shows no sample: only the collectors know all names.
    for collector in registry._collector_to_names:
        metric: Any = collector
        (family,) = metric.describe()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield name, Series(family.type, tuple(metric._labelnames))


def documented() -> dict[str, Series]:
    rows = re.findall(
        r"^\| `(freshet_\w+)` \| (\w+) \| ([\w, ]*)\| ", (ROOT / "docs/metrics.md").read_text(), re.M
    )
    return {
        name: Series(kind, ("graph", *(label.strip() for label in labels.split(",") if label.strip())))
        for name, kind, labels in rows
    }


def test_the_documentation_lists_every_series_with_its_type_and_labels() -> None:
    assert documented() == exported()


def test_the_documentation_names_the_score_files_key_of_every_strategys_figure() -> None:
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| (.+) \| figures of \[a strategy's own\]", page, re.M)
    declared = [figure for name in BUILT_IN for figure in declared_by(STRATEGIES.find(name))]
    keys = {(figure.key or figure.name).partition(".")[0] for figure in declared}
    assert set(re.findall(r"`(\w+)`", row)) == keys


def test_every_series_has_the_prefix_and_the_graph() -> None:
    for name, series in exported().items():
        assert name.startswith("freshet_")
        assert "graph" in series.labels
        assert not {"node", "src", "dst", "id"} & set(series.labels)


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def queries() -> list[tuple[str, str]]:
    found = [
        (panel["title"], target["expr"])
        for panel in dashboard()["panels"]
        for target in panel.get("targets", [])
    ]
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    return found + [(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules]


@pytest.mark.parametrize(("where", "query"), queries())
def test_every_query_asks_for_what_the_code_exports(where: str, query: str) -> None:
    series = exported()
    names = re.findall(r"\b(freshet_\w+|up)\b", query)
    assert names, where
    known_labels = set(SCRAPED)
    for name in names:
        if name in FROM_PROMETHEUS:
            known_labels |= FROM_PROMETHEUS[name]
            continue
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        of_histogram = base != name and base in series and series[base].kind == "histogram"
        assert of_histogram or (name in series and series[name].kind != "histogram"), (
            f"{where}: no series {name}"
        )
        known_labels |= set(series[base if of_histogram else name].labels)
        if series.get(name, series.get(base)).kind == "counter":  # type: ignore[union-attr]
            assert re.search(rf"(rate|increase|deriv)\({name}", query), f"{where}: the bare counter {name}"
    grouped = [
        label for group in re.findall(r"(?:by|on) ?\(([\w, ]+)\)", query) for label in group.split(",")
    ]
    matched = re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", query)
    for label in [*grouped, *matched]:
        assert label.strip() in known_labels, f"{where}: no label {label}"


def test_the_dashboard_has_a_row_for_each_question() -> None:
    panels = dashboard()["panels"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == ROWS
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    for panel in panels:
        assert panel["type"] == "row" or (panel["targets"] and panel["description"] and panel["datasource"])


def test_legends_name_labels_that_the_query_keeps() -> None:
    series = exported()
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            grouped = re.findall(r"by \(([\w, ]+)\)", query)
            names = [n for n in re.findall(r"\bfreshet_\w+", query) if n in series]
            kept = {label.strip() for group in grouped for label in group.split(",")} or {
                label for name in names for label in series[name].labels
            }
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, panel["title"]


def test_panels_stand_side_by_side_and_never_over_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        grid = panel["gridPos"]
        cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
        assert not cells & taken, panel["title"]
        assert grid["x"] + grid["w"] <= 24
        taken |= cells


def test_the_dashboard_fits_into_anyones_grafana() -> None:
    """Its data source is a variable, whose first choice is the default one, and no uid collides with another's."""
    variable = dashboard()["templating"]["list"][0]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    text = json.dumps(dashboard())
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {f"${{{variable['name']}}}"}
    provisioned = yaml.safe_load(
        (ROOT / "deploy/grafana/provisioning/datasources/prometheus.yaml").read_text()
    )
    assert [source["isDefault"] for source in provisioned["datasources"]] == [True]


def test_every_alert_has_a_severity_and_a_runbook_that_exists() -> None:
    page, names = "docs/runbook.md", []
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.M)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in (rule for rule in group["rules"] if "alert" in rule):
            names.append(rule["alert"])
            assert rule["labels"]["severity"] in {"page", "ticket"}
            address, _, anchor = rule["annotations"]["runbook_url"].partition("#")
            assert (address, anchor in anchors) == (page, True), rule["alert"]
    assert len(set(names)) == len(names)
