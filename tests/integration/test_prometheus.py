"""Both services export what Prometheus, the dashboard and the alerts ask for: shown by a real Prometheus where there is one."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families
from warm_popen import WarmPopen

from freshet_graph.stream.synthetic import interactions

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
T0 = 1_700_000_000
SNAPSHOTS, INTERVAL_S = 12, 10
NEEDS_TRAFFIC = (
    "gap",
    "restarts",
    "duplicates",
    "late",
    "refused",
    "tombstones",
    "held_since",
    "topic_held",
    "stream_labels",
)
"""What a healthy stream may leave at nothing."""
OF_SCORES_ON_ARRIVAL = ("freshet_scor", "freshet_question")
"""Series of another command."""
OF_LABELS = ("trainer_label", "unjudged", "judged_until", "stability", 'subset="window"')
"""Series of another task."""
OF_EVENT_MODELS = ("remembered", "evicted")
"""Series of what snapshot models, such as the one watched here, do not have."""
OF_OTHER_STRATEGIES = (
    "cache_rows",
    "halo",
    "schedule",
    "batch_size",
    "adjuster",
    "reservoir",
    "generator",
    "averages",
    "divergence",
    "predicted_seconds",
)
"""Series that only the strategies auto, vertex, group and hybrid have; the one watched here is another."""


@dataclass
class Running:
    """Both services, each with its endpoints."""

    stream: str
    trainer: list[str]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def told(log: Path, pattern: str) -> str:
    """The address that a service says in its log, once it does."""
    wait_for(f"{pattern} in {log.name}", lambda: re.search(pattern, log.read_text(errors="replace")))
    found = re.search(pattern, log.read_text(errors="replace"))
    assert found is not None
    return found[1]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()  # type: ignore[no-any-return]


def wait_for(what: str, condition: Any, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except OSError:
            pass  # not up yet
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.25)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An embedded broker with a small stream, the stream job, and a trainer of two ranks that has learned it."""
    folder = tmp_path_factory.mktemp("services")
    children: list[subprocess.Popen[bytes]] = []

    def start(name: str, *command: str | Path, popen: type[subprocess.Popen[bytes]] = WarmPopen) -> None:
        with (folder / f"{name}.log").open("wb") as log:
            children.append(popen(command, stdout=log, stderr=subprocess.STDOUT))

    try:
        module = "-m", "freshet_graph.stream.kafka.embedded"
        start("broker", sys.executable, *module, "--port-file", folder / "address", popen=subprocess.Popen)
        wait_for("the broker", (folder / "address").exists)
        address = (folder / "address").read_text()
        produce(address)
        (folder / "stream.yaml").write_text(yaml.safe_dump(stream_configuration(folder, address)))
        (folder / "trainer.yaml").write_text(yaml.safe_dump(trainer_configuration(folder)))
        start("stream", "freshet-stream", "run", "--config", folder / "stream.yaml")
        start("trainer", "freshet-trainer", "run", "--config", folder / "trainer.yaml", "--ranks", "2")
        services = Running(
            told(folder / "stream.log", r'"event": "metrics".*?"url": "(http[^"]+)"'),
            [told(folder / "trainer.log", rf'"url": "(http[^"]+)", "rank": {rank}') for rank in range(2)],
        )
        wait_for(
            "the first scored snapshots",
            lambda: (
                'scorer="recency"' in get(f"{services.trainer[0]}/metrics")
                and "freshet_trainer_step_seconds_count" in get(f"{services.trainer[1]}/metrics")
            ),
        )
        yield services
    finally:
        for child in reversed(children):
            child.send_signal(signal.SIGTERM)
        for child in reversed(children):
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
        for log in folder.glob("*.log"):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}")


def produce(address: str) -> None:
    table = interactions(120, SNAPSHOTS * 150, start_s=T0, span_s=SNAPSHOTS * INTERVAL_S - 1.0)
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    producer.list_topics("edges", timeout=10)
    for src, dst, t in zip(*(table[name].to_pylist() for name in ("src", "dst", "t")), strict=True):
        producer.produce("edges", json.dumps({"src": src, "dst": dst, "t": t}).encode(), partition=0)
    producer.produce("edges", b"this is not JSON", partition=0)
    # An event of the interval after the last: it closes the others.
    producer.produce(
        "edges", json.dumps({"src": 1, "dst": 2, "t": T0 + SNAPSHOTS * INTERVAL_S}).encode(), partition=0
    )
    producer.flush(30)


def stream_configuration(folder: Path, address: str) -> dict[str, Any]:
    return {
        "graph": "watched",
        "store": str(folder / "store"),
        "kafka": {"bootstrap": address, "topics": [{"name": "edges"}], "api_version": [2, 1]},
        "snapshots": {"interval_s": INTERVAL_S, "idle_timeout_s": 0.5},
        "lanes": [
            {"name": "distdy", "algorithm": "distdy", "parts": 2},
            {"name": "sep", "algorithm": "sep", "parts": 2},
        ],
        "publish": [{"exports": "distdy", "topic": "vectors"}],
        "metrics": {"port": 0},
    }


def trainer_configuration(folder: Path) -> dict[str, Any]:
    return {
        "store": str(folder / "store"),
        "lane": "distdy",
        "model": "sage-linear",
        "strategy": "snapshot",
        "window": 2,
        "checkpoint": str(folder / "checkpoints"),
        "checkpoint_every": 1,
        "device": "cpu",
        "drift": {"window_events": 150, "reference_events": 150},
        "exports": {"embeddings": True},
        "scoring": {"sample": 50},
        "metrics": {"port": 0},
    }


def test_both_services_expose_labelled_series_and_are_ready(running: Running) -> None:
    names: dict[str, set[str]] = {}
    for url in (running.stream, *running.trainer):
        assert get(f"{url}/healthz") == "alive\n"
        families = list(text_string_to_metric_families(get(f"{url}/metrics")))
        names[url] = {sample.name for family in families for sample in family.samples}
        for family in families:
            for sample in family.samples:
                if sample.name.startswith("freshet_"):
                    assert sample.labels["graph"] == "watched", sample
    assert get(f"{running.stream}/readyz") == "ready\n"
    assert {"freshet_stream_events_total", "freshet_stream_refused_total", "freshet_lane_cut_ratio"} <= names[
        running.stream
    ]
    assert {"freshet_trainer_score", "freshet_trainer_rank_up"} <= names[running.trainer[0]]
    assert "freshet_trainer_rank_up" in names[running.trainer[1]]


@pytest.fixture(scope="module")
def prometheus(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Prometheus that has scraped both services a few times, with the shipped alerts."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed; the exposition is parsed by the test above")
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "1s"}
    config["rule_files"] = [str(PROMETHEUS / "alerts.yml")]
    for job, urls in zip(config["scrape_configs"], ([running.stream], running.trainer), strict=True):
        job["static_configs"] = [{"targets": [url.removeprefix("http://") for url in urls]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    process = subprocess.Popen(
        [
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for("three targets up", lambda: len(ask(url, "count_over_time(up[1m]) > 3")) == 3, 60)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def ask(url: str, query: str) -> list[dict[str, Any]]:
    text = get(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    answer = json.loads(text)
    assert answer["status"] == "success", answer
    return answer["data"]["result"]  # type: ignore[no-any-return]


def test_prometheus_scrapes_every_target(prometheus: str) -> None:
    up = sorted((sample["metric"]["job"], sample["value"][1]) for sample in ask(prometheus, "up"))
    assert up == [("freshet-stream", "1"), ("freshet-trainer", "1"), ("freshet-trainer", "1")]


def test_prometheus_has_the_figures_of_the_stream_and_of_the_model(prometheus: str) -> None:
    events = ask(prometheus, 'sum(freshet_stream_events_total{op="insert"})')
    assert float(events[0]["value"][1]) == SNAPSHOTS * 150 + 1
    refused = ask(prometheus, "freshet_stream_refused_total > 0")
    assert [(sample["metric"]["reason"], sample["value"][1]) for sample in refused] == [("not_json", "1")]
    scorers = {
        s["metric"]["scorer"] for s in ask(prometheus, 'freshet_trainer_score{metric="ap",subset="all"}')
    }
    assert scorers == {
        "model", "random", "edgebank", "edgebank_window", "recency", "recency_popularity",
    }  # fmt: skip
    assert {s["metric"]["rank"] for s in ask(prometheus, "freshet_trainer_rank_up == 1")} == {"0", "1"}


def test_every_query_of_the_dashboard_answers(prometheus: str) -> None:
    dashboard = json.loads((ROOT / "deploy/grafana/dashboards/freshet.json").read_text())
    silent = []
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$graph", "watched").replace("$__rate_interval", "1m")
            expected = not any(
                word in query
                for word in (
                    *NEEDS_TRAFFIC,
                    *OF_EVENT_MODELS,
                    *OF_SCORES_ON_ARRIVAL,
                    *OF_OTHER_STRATEGIES,
                    *OF_LABELS,
                )
            )
            if expected and not ask(prometheus, query):
                silent.append((panel["title"], query))
    assert silent == []


def test_the_alerts_are_loaded_and_sound(prometheus: str) -> None:
    def rules() -> list[dict[str, Any]]:
        groups = json.loads(get(f"{prometheus}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    wait_for("all rules evaluated", lambda: all(rule["health"] != "unknown" for rule in rules()), 30)
    assert [rule["name"] for rule in rules() if rule["health"] != "ok"] == []


def test_promtool_fires_every_alert() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (it comes with prometheus)")
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        run = subprocess.run(
            ["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stdout + run.stderr
