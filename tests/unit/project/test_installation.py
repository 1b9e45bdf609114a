"""Each set that docs/install.md names, alone in a fresh environment: its commands, its lines of Python, its modules."""

import email
import importlib.metadata
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from lane_stream import lane, make_store, random_events
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/install.md").read_text(encoding="utf-8")
MODULES = {
    "base": ("schemas", "stream.arrays", "stream.kernels", "stream.snapshots", "stream.store", "stream.partition",
             "stream.offline"),
    "stream": ("schemas", "stream"),
    "trainer": ("schemas", "trainer", "stream.store", "stream.partition", "stream.snapshots", "stream.decode.files",
                "stream.service"),
    "all": ("schemas", "stream", "trainer"),
}  # fmt: skip
"""Packages of each set."""
SOLVERS = ("cp_sat", "highs")
"""Modules that the extra ilp is for."""
HELP = "Usage: freshet-"
NEEDS = "error: freshet-{} needs {}, which is not installed. Run pip install 'freshet-graph[{}]'"
COMMANDS = {
    "base": {"stream --help": NEEDS.format("stream", "typer", "stream"),
             "trainer --help": NEEDS.format("trainer", "typer", "trainer")},
    "stream": {"stream --help": HELP, "trainer models": NEEDS.format("trainer models", "torch", "trainer")},
    "trainer": {"trainer --help": HELP, "stream warm": NEEDS.format("stream warm", "fastavro", "stream"),
                "trainer score --config x": '{"event": "freshet-trainer score needs kafka-python, which is not installed.'},
    "all": {"stream --help": HELP, "trainer --help": HELP},
}  # fmt: skip
IMPORTS = """
import importlib, pkgutil, sys
import freshet_graph
for found in pkgutil.walk_packages(freshet_graph.__path__, "freshet_graph."):
    name = found.name.removeprefix("freshet_graph.")
    if any(name == held or name.startswith(held + ".") for held in sys.argv[1].split(",")):
        if name.rpartition(".")[2] not in sys.argv[2].split(","):
            importlib.import_module(found.name)
            print(name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    program = "import sys, hatchling.build; hatchling.build.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, cwd=ROOT, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def pip(python: Path, *arguments: str | Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--disable-pip-version-check",
        "install",
        "-q",
    ]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def required(wheel: Path, extra: str) -> list[str]:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_string(packed.read(name).decode())
    lines = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    return [line.name for line in lines if line.marker is None or line.marker.evaluate({"extra": extra})]


def link(site: Path, names: list[str]) -> None:
    """Have what this environment has of some distributions, and of all that those need, and nothing else."""
    linked: set[str] = set()
    while names:
        name = names.pop().lower()
        if name in linked:
            continue
        linked.add(name)
        distribution = importlib.metadata.distribution(name)
        for top in {Path(str(file)).parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
        for line in map(Requirement, distribution.requires or []):
            if line.marker is None or line.marker.evaluate({"extra": ""}):
                names.append(line.name)


@pytest.fixture(scope="module", params=["base", "stream", "trainer", "all"])
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A set, and the Python of an environment that has it: the base from the index, the others by links, as torch is large."""
    folder = tmp_path_factory.mktemp(request.param)
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    if request.param == "base":
        pip(python, "-c", ROOT / "constraints.txt", wheel)
    else:
        pip(python, "--no-index", "--no-deps", wheel)
        (site,) = folder.glob("lib/*/site-packages")
        link(site, required(wheel, request.param))
    return request.param, python


def output(command: list[str | Path], folder: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_commands_work_or_say_which_extra_they_need(installed: tuple[str, Path], tmp_path: Path) -> None:
    name, python = installed
    for words, expected in COMMANDS[name].items():
        service, *rest = words.split()
        text = output([python.with_name(f"freshet-{service}"), *rest], tmp_path)
        assert text.strip().startswith(expected), text
        if expected is not HELP:
            assert text.count("\n") == 1


@pytest.mark.slow
def test_the_pages_lines_of_a_set_run(installed: tuple[str, Path], tmp_path: Path) -> None:
    name, python = installed
    (lines,) = re.findall(rf"## The set `{name}`\n.*?```python\n(.*?)```", PAGE, re.DOTALL) or [""]
    if name == "all":
        return  # its lines are those of the others
    assert lines.count("\n") <= 8
    make_store(tmp_path / "store", lane("sep"))
    events = random_events()
    edges = events.filter(events["op"].to_numpy() > 0).select(["src", "dst", "t", "weight"])
    pq.write_table(edges, tmp_path / "events.parquet")
    text = output([python, "-c", lines], tmp_path)
    assert "Traceback" not in text, text
    assert text


@pytest.mark.slow
def test_every_module_of_a_set_can_be_imported(installed: tuple[str, Path], tmp_path: Path) -> None:
    name, python = installed
    without = "" if name == "all" else ",".join(SOLVERS)
    done = subprocess.run(
        [python, "-c", IMPORTS, ",".join(MODULES[name]), without], capture_output=True, text=True, check=False, cwd=tmp_path
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 50


def interpreters() -> dict[str, str]:
    """Versions beside the one of these tests that this machine has, with their commands."""
    found = {}
    for version in ("3.12", "3.13", "3.14"):
        names = [
            shutil.which(f"python{version}"),
            *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")),
        ]
        for name in filter(None, names):
            if not subprocess.run([name, "--version"], capture_output=True, check=False).returncode:
                found[version] = name
                break
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("interpreter", interpreters().values(), ids=interpreters())
def test_another_python_runs_the_stream_and_tests_of_it(
    interpreter: str, wheel: Path, tmp_path: Path
) -> None:
    """From the index: imports of all modules, and tests of files and of snapshots, which need nothing else."""
    subprocess.run([interpreter, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    constraints = ("-c", ROOT / "constraints.txt")
    pip(
        python,
        "--no-compile",
        *constraints,
        f"{wheel}[stream]",
        "psutil",
        "pytest",
        "pytest-timeout",
        "hypothesis",
    )
    done = subprocess.run(
        [python, "-c", IMPORTS, ",".join(MODULES["stream"]), ""], capture_output=True, text=True, check=False, cwd=tmp_path
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tests = ["tests/unit/stream/snapshots", "tests/unit/stream/decode/test_event_file.py"]
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-k",
        "not with_another_remedy",
        *tests,
    ]  # its fixture is conftest's
    environment = {
        "PATH": "/usr/bin:/bin",
        "NUMBA_CACHE_DIR": str(tmp_path / "kernels"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout[-3000:]
