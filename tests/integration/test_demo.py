"""The demo, shortened: it ends by itself with its files, and leaves nothing behind when it is interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "deploy" / "demo" / "orchestrate.py"


KERNELS = Path(__file__).parent / "kernels"
STREAM, TRAINER = "freshet_graph.stream.start", "freshet_graph.trainer.cli"
PICTURE = json.loads((ROOT / "docs" / "images" / "demo.json").read_text(encoding="utf-8"))
"""Figures of the demo that the README shows: three times as many events over as many nodes."""


def kernels_left_in(folder: Path) -> set[str]:
    return {kernel for file in folder.iterdir() for kernel in file.read_text().splitlines()}


def start(out: Path, *options: str, **more: str) -> subprocess.Popen[str]:
    # A shell has its background jobs ignore SIGINT, and what they start inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("FRESHET_")
    } | more
    return subprocess.Popen(
        [sys.executable, str(DEMO), "--out", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=environment,
    )


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What the two commands ``warm`` compile, or find compiled."""
    folder = tmp_path_factory.mktemp("warm")
    environment = {**os.environ, "PYTHONPATH": str(KERNELS), "KERNELS": str(folder)}
    for module in (STREAM, TRAINER):
        command = [sys.executable, "-c", f"from {module} import main; main()", "warm", "--json"]
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["compiled"] >= 0
    return kernels_left_in(folder)


@pytest.mark.timeout(900)
def test_the_demo_ends_with_a_model_above_all_floors_and_no_event_lost_as_the_readme_shows(
    tmp_path: Path, warmed: set[str]
) -> None:
    out, kernels = tmp_path / "demo", tmp_path / "kernels"
    kernels.mkdir()
    path = os.pathsep.join([str(KERNELS), str(ROOT)])
    demo = start(out, "--events", "40000", "--seconds", "36", PYTHONPATH=path, KERNELS=str(kernels))
    printed, _ = demo.communicate(timeout=280)
    assert demo.returncode == 0, printed
    report = json.loads((out / "report.json").read_text())
    assert report["events"] == report["sent"] > 40_000
    assert set(report["lanes"]) == {"distdy", "hash", "sep"}
    assert report["lanes"]["distdy"]["cut"][-1] < 0.6 * report["lanes"]["hash"]["cut"][-1]
    assert len(report["ap"]) == report["snapshots"]
    mean = report["ap_second_half"]
    assert mean["model"] > max(value for scorer, value in mean.items() if scorer != "model") + 0.05
    shown = PICTURE["ap_second_half"]
    assert {scorer: mean[scorer] for scorer in shown} == pytest.approx(shown, abs=0.08)
    for name, lane in PICTURE["lanes"].items():
        # An edge lane's balance depends on how many events a batch has, which is more on a busy machine.
        for figure, most in ("cut", 0.05), ("balance", 0.1):
            assert report["lanes"][name][figure][-1] == pytest.approx(lane[figure][-1], abs=most), name
        assert report["lanes"][name]["saving"] == pytest.approx(lane["saving"], abs=0.05), name
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    for words in ("none lost, none twice", "report.png", "to try next"):
        assert words in printed.lower().replace("\n", " ")
    used = kernels_left_in(kernels)
    assert {kernel.removeprefix("freshet_graph.").split(".")[0] for kernel in used} == {"stream", "trainer"}
    assert any(kernel.startswith("freshet_graph.stream.partition.vertex.distdy") for kernel in used)
    assert used <= warmed, "the commands warm leave nothing to be compiled while events come"


@pytest.mark.timeout(180)
def test_ctrl_c_ends_every_child(tmp_path: Path) -> None:
    demo = start(tmp_path / "demo", "--events", "40000", "--seconds", "60")
    myself = psutil.Process(demo.pid)
    deadline = time.monotonic() + 90
    while len(children := myself.children(recursive=True)) < 3:  # broker, stream, trainer
        assert demo.poll() is None, demo.communicate()[0]
        assert time.monotonic() < deadline, "the demo's children did not start"
        time.sleep(0.1)
    demo.send_signal(signal.SIGINT)
    printed, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, printed
    _, alive = psutil.wait_procs(children, timeout=10)
    assert [process.cmdline() for process in alive] == []


@pytest.mark.timeout(120)
def test_a_broker_that_dies_ends_the_demo_with_a_sentence(tmp_path: Path) -> None:
    demo = start(tmp_path / "demo", "--events", "40000", "--seconds", "60")
    myself = psutil.Process(demo.pid)
    deadline = time.monotonic() + 60
    broker: list[psutil.Process] = []
    while not broker:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        broker = [
            child for child in myself.children() if "freshet_graph.stream.kafka.embedded" in child.cmdline()
        ]
    address = tmp_path / "demo" / "broker.address"
    while not address.exists():
        time.sleep(0.1)
    broker[0].kill()
    printed, _ = demo.communicate(timeout=100)
    assert demo.returncode == 1, printed
    assert "error: broker was ended by SIGKILL" in printed.replace("\n", " ")
    assert "broker.log" in printed.replace("\n", "")
