"""deploy/ is consistent in itself and with the code: compose, configurations, Prometheus, Grafana, the Makefile."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from freshet_graph.schemas.config import Snapshots, StreamConfig
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.trainer.validation import require_trainable

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"


@pytest.fixture(autouse=True)
def _environment(clean_environment: pytest.MonkeyPatch) -> None:
    """Nothing of the caller's shell."""


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert set(compose["volumes"]) >= {
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
        if not volume.startswith(".")
    }
    return compose["services"]  # type: ignore[no-any-return]


@pytest.fixture
def stream() -> StreamConfig:
    return load_config(StreamConfig, DEPLOY / "stream.yaml")


@pytest.fixture
def trainer() -> TrainerConfig:
    return load_config(TrainerConfig, DEPLOY / "trainer.yaml")


def test_the_five_services_are_there_and_each_says_whether_it_is_healthy(services: dict[str, Any]) -> None:
    assert set(services) == {"kafka", "topics", "stream", "trainer", "prometheus", "grafana"}
    for name in set(services) - {
        "topics",
        "stream",
        "trainer",
    }:  # one runs once and ends; two have images of their own
        assert services[name]["healthcheck"]["test"], name


def test_what_is_mounted_exists(services: dict[str, Any]) -> None:
    for service in services.values():
        for volume in service.get("volumes", []):
            if volume.startswith("."):
                assert (DEPLOY / volume.split(":")[0]).exists(), volume


def test_images_are_pinned(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if "build" in service:
            assert f"AS {service['build']['target']}" in (ROOT / "Dockerfile").read_text(), name
        else:
            assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), name


def test_kafka_is_the_version_that_the_tests_run(services: dict[str, Any]) -> None:
    version = re.search(r"<kafka.version>(.+)</kafka.version>", (DEPLOY / "kafka/pom.xml").read_text())
    assert version is not None
    assert services["kafka"]["image"] == services["topics"]["image"] == f"apache/kafka:{version.group(1)}"


def test_the_stream_reads_the_topics_that_are_made_at_the_address_that_kafka_advertises(
    services: dict[str, Any], stream: StreamConfig
) -> None:
    assert stream.kafka.bootstrap in services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    made = re.search(r"for topic in ([\w. ]+);", services["topics"]["command"][0])
    assert made is not None
    wanted = {topic.name for topic in stream.kafka.topics} | {stream.kafka.dead_letters}
    assert set(made.group(1).split()) == wanted


def ranks_of(services: dict[str, Any]) -> int:
    command = services["trainer"]["command"]
    return int(command[command.index("--ranks") + 1]) if "--ranks" in command else 1


def test_the_trainer_follows_a_lane_of_the_stream_in_the_same_store_with_a_part_or_more_per_rank(
    services: dict[str, Any], stream: StreamConfig, trainer: TrainerConfig
) -> None:
    lane = {lane.name: lane for lane in stream.lanes}[trainer.lane]
    assert lane.parts >= ranks_of(services)
    require_trainable(trainer, ranks_of(services))
    assert stream.store == trainer.store
    assert "data:/data" in services["stream"]["volumes"]
    assert "data:/data" in services["trainer"]["volumes"]
    assert Path(stream.store).is_relative_to("/data")
    assert Path(trainer.checkpoint).is_relative_to("/data")


def test_the_examples_train_the_recommended_model_on_snapshots_of_minutes(
    stream: StreamConfig, trainer: TrainerConfig
) -> None:
    recommended = TrainerConfig()
    assert (trainer.lane, trainer.model, trainer.strategy) == (
        recommended.lane, recommended.model, recommended.strategy,
    )  # fmt: skip
    for each in (stream, load_config(StreamConfig, DEPLOY / "flink" / "stream.yaml")):
        assert each.snapshots.interval_s == Snapshots().interval_s
        assert recommended.lane in [lane.name for lane in each.lanes]


def test_prometheus_scrapes_every_rank_where_it_serves(
    services: dict[str, Any], stream: StreamConfig, trainer: TrainerConfig
) -> None:
    assert (stream.metrics.host, trainer.metrics.host) == ("0.0.0.0", "0.0.0.0")
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    targets = [
        t for job in config["scrape_configs"] for static in job["static_configs"] for t in static["targets"]
    ]
    assert targets == [
        f"stream:{stream.metrics.port}",
        *(f"trainer:{trainer.metrics.port + rank}" for rank in range(ranks_of(services))),
    ]
    for name in config["rule_files"]:
        assert (DEPLOY / "prometheus" / name).exists()
    checks = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if "/healthz" in line]
    for config, check in zip((stream, trainer), checks, strict=True):
        assert f":{config.metrics.port}/healthz" in check


def test_nothing_is_published_beyond_this_machine(services: dict[str, Any]) -> None:
    for service in services.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")


def test_grafana_finds_its_dashboard(services: dict[str, Any]) -> None:
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DEPLOY / "grafana/dashboards" / Path(home).name).exists()
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/freshet.yaml").read_text())
    assert provider["providers"][0]["options"]["path"] == str(Path(home).parent)
    assert f"./grafana/dashboards:{Path(home).parent}:ro" in services["grafana"]["volumes"]


def test_what_the_page_says_of_services_is_what_images_units_and_compose_do(services: dict[str, Any]) -> None:
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    table = [
        [cell.strip() for cell in line.split("|")[2:4]] for line in page.splitlines() if line.startswith("|")
    ]
    recipe = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for place, name in enumerate(("stream", "trainer")):
        image = recipe[recipe.index(f"AS {name}\n") :]
        (port,) = re.findall(r"^EXPOSE (\d+)", image, re.MULTILINE)[:1]
        unit = (DEPLOY / f"systemd/freshet-{name}.service").read_text(encoding="utf-8")
        (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)", unit, re.MULTILINE)
        assert services[name]["stop_grace_period"] == f"{seconds}s"
        column = [row[place] for row in table]
        assert f"`freshet-{name} run --config {name}.yaml`" in column
        assert any(cell.split(",")[0] == port for cell in column)
        assert seconds in column
        assert f"/etc/freshet/{name}.yaml" in image
        assert f"`/etc/freshet/{name}.yaml`" in page
    assert {"`runAsUser: 10001`", "`fsGroup: 10001`"} <= set(re.findall(r"`[^`\n]+`", page))
    assert set(re.findall(r"^USER (\S+)", recipe, re.MULTILINE)) == {"10001:10001"}
    assert {"systemd", "Compose", "Kubernetes"} <= set(re.findall(r"^### (.*)$", page, re.MULTILINE))
    for file in re.findall(r"`(deploy/[\w./]+)`", page):
        assert (ROOT / file).exists(), file


def test_make_help_lists_the_targets_of_the_contract() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^  make ([\w-]+) +\S", shown, re.MULTILINE)
    contract = "help setup demo test test-slow lint bench kafka kafka-stop clean"
    assert set(contract.split()) <= set(targets)


# deploy/flink


def test_the_flink_examples_configuration_runs_on_the_parts_that_its_compose_file_has() -> None:
    config = load_config(StreamConfig, DEPLOY / "flink" / "stream.yaml")
    compose = yaml.safe_load((DEPLOY / "flink" / "compose.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert config.runner.name == "flink"
    assert config.runner.job_server == "job-server:8099"  # the server's own default port
    assert "job-server" in services
    assert config.runner.environment == "external:localhost:50000"
    assert services["workers"]["network_mode"] == "service:taskmanager"
    assert services["workers"]["command"] == ["--port=50000"]
    for name in ("workers", "stream"):  # the store is one for both
        assert f"data:{Path(config.store).parent}" in services[name]["volumes"]


def test_no_worker_pool_that_we_ship_or_name_can_be_reached_from_another_host() -> None:
    """Beam's own entry point binds every address; ours is tested in test_worker_pool.py."""
    shipped = [ROOT / "Dockerfile", ROOT / "Makefile", ROOT / "README.md"]
    for folder in ("deploy", "docs", "stream", "tests", "benchmarks"):
        shipped += [
            path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".yaml", ".sh")
        ]
    shipped = [path for path in shipped if path != Path(__file__)]
    for path in shipped:
        text = path.read_text(encoding="utf-8")
        assert "worker_pool_main --" not in text, path
        assert "Servicer.start(" not in text, path
    compose = yaml.safe_load((DEPLOY / "flink" / "compose.yaml").read_text(encoding="utf-8"))
    workers = compose["services"]["workers"]
    assert workers["entrypoint"] == ["python", "-m", "freshet_graph.stream.cluster.worker_pool"]
    assert workers["network_mode"] == "service:taskmanager"
    assert "ports" not in workers
    assert "ports" not in compose["services"]["taskmanager"]


def test_flinks_images_are_of_the_lines_that_the_tests_run() -> None:
    pom = (DEPLOY / "flink" / "pom.xml").read_text(encoding="utf-8")
    line, beam = (re.search(f"<{key}>(.+)</{key}>", pom) for key in ("flink.line", "beam.version"))
    assert line is not None
    assert beam is not None
    services = yaml.safe_load((DEPLOY / "flink" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for name in ("jobmanager", "taskmanager"):
        assert services[name]["image"] == f"flink:{line.group(1)}-java17"
    assert services["job-server"]["image"] == f"apache/beam_flink{line.group(1)}_job_server:{beam.group(1)}"
