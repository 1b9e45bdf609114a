"""Services start light, and the folders are those of the map."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lane_stream import lane, make_store

import freshet_graph
from freshet_graph.schemas.errors import FreshetError
from freshet_graph.stream.partition.interface import PartitionError
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.errors import StoreError
from freshet_graph.trainer.lost_peer import PeerLostError

ROOT = Path(__file__).parents[3]
PACKAGES = ("schemas", "stream", "trainer")


@pytest.mark.parametrize(
    ("module", "never"),
    [
        # Starting a command must cost neither a GPU library nor a job runner.
        ("freshet_graph.stream.cli", {"dgl", "torch", "apache_beam", "matplotlib"}),
        (
            "freshet_graph.trainer.cli",
            {"dgl", "torch", "apache_beam", "kafka", "confluent_kafka", "matplotlib"},
        ),
        # All that a rank needs, and still no DGL, no job runner and no Kafka client.
        (
            "freshet_graph.trainer.service, freshet_graph.trainer.evaluation.evaluate; "
            "from freshet_graph.trainer.strategies.interface import STRATEGIES; "
            "from freshet_graph.trainer.models.interface import MODELS; from freshet_graph.trainer.tasks.interface import TASKS; "
            "MODELS.all(), STRATEGIES.all(), TASKS.all()",
            {"dgl", "apache_beam", "kafka", "confluent_kafka"},
        ),
        # Nor does a reader of a store, or what partitions a file.
        (
            "freshet_graph; freshet_graph.open_store; freshet_graph.partition",
            {"dgl", "torch", "apache_beam", "kafka", "confluent_kafka", "pandas", "networkx"},
        ),
        (
            "freshet_graph.stream.store.lane.writer, freshet_graph.stream.sink; "
            "from freshet_graph.stream.partition.interface import PARTITIONERS; "
            "PARTITIONERS.all()",
            {"dgl", "apache_beam", "kafka", "torch"},
        ),
        # Nor does a command that only looks, and a partitioner brings no other one.
        (
            "freshet_graph.stream.store.inspect; "
            "from freshet_graph.stream.commands.config import EXAMPLE, StreamConfig, require_parts; "
            "EXAMPLE['lanes'][0] = {**EXAMPLE['lanes'][0], 'algorithm': 'hash', 'params': {}}; "
            "require_parts(StreamConfig(**EXAMPLE))",
            {
                "apache_beam",
                "kafka",
                "torch",
                "freshet_graph.stream.partition.vertex.distdy",
                "freshet_graph.stream.partition.edge.need_cover",
            },
        ),
    ],
)
def test_nothing_imports_heavy_packages_before_it_uses_them(module: str, never: set[str]) -> None:
    program = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    assert never & set(json.loads(run.stdout.splitlines()[-1])) == set()


def test_what_programs_use_is_found_at_the_top_and_loaded_when_it_is_asked_for() -> None:
    program = "import sys, freshet_graph; print('torch' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert run.stdout == "False\n"
    assert [getattr(freshet_graph, name).__name__ for name in freshet_graph.__all__] == freshet_graph.__all__
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").exists()


OWN = """
import schemas, stream, trainer
from freshet_graph import open_store
print(schemas.MINE, stream.MINE, trainer.MINE, open_store(sys.argv[1]).window("sep").graphs[0].num_nodes)
"""


def test_a_program_with_modules_named_as_our_packages_can_use_the_library(tmp_path: Path) -> None:
    for name in PACKAGES:
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    (tmp_path / "program.py").write_text(f"import sys\n{OWN}")
    store = make_store(tmp_path / "store", lane("sep"))
    run = subprocess.run(
        [sys.executable, tmp_path / "program.py", store], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert run.stdout.split()[:3] == ["True"] * 3


def test_nothing_imports_a_package_by_its_folder_alone() -> None:
    """From the repository's root that would work by accident, and load a module twice under two names."""
    files = subprocess.run(["git", "ls-files", "*.py", "*.md", "*.toml", "*.yaml", "*.sh", "Dockerfile"], cwd=ROOT,
                           capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
    alone = re.compile(
        r"\bfrom (schemas|stream|trainer)(\.\w+)* import\b|^\s*import (schemas|stream|trainer)\b|-m (stream|trainer)\.",
        re.MULTILINE,
    )
    ours = [ROOT / file for file in files if ROOT / file != Path(__file__) and (ROOT / file).is_file()]
    assert [file for file in ours if alone.search(file.read_text(encoding="utf-8"))] == []


WITHOUT = """
import sys
for name in {without}:
    sys.modules[name] = None
from freshet_graph import open_store
store = open_store(sys.argv[1])
for lane in store.lanes:
    for graph in store.window(lane, 3):
        for column in (graph.src, graph.dst, graph.weight, graph.features, graph.owner):
            print(hash(column.tobytes()), column.shape)
graph = store.graph()
for column in (graph.src, graph.dst, graph.weight, graph.features):
    print(hash(column.tobytes()), column.shape)
"""


def test_windows_read_without_numba_are_those_of_the_kernels(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", *map(lane, ("distdy", "hdrf", "sep")))
    windows = [
        subprocess.run(
            [sys.executable, "-c", WITHOUT.format(without=without), store], capture_output=True, text=True, check=True, cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        ).stdout
        for without in ((), ("numba", "llvmlite", "torch", "apache_beam", "kafka", "scipy", "networkx", "yaml", "typer"))
    ]  # fmt: skip
    assert windows[0].count("\n") == 3 * 3 * 5 + 4
    assert windows[0] == windows[1]


def test_errors_for_callers_have_one_root() -> None:
    for error in (StoreError, PartitionError, Failure, PeerLostError):
        assert issubclass(error, FreshetError)


def test_dgl_is_imported_inside_functions_only() -> None:
    """GPU machines may have a Python without it: everything but METIS must run there."""
    at_top = re.compile(r"^(import|from) dgl\b", re.MULTILINE)
    assert [path for path in sources() if at_top.search(path.read_text(encoding="utf-8"))] == []


def test_nothing_is_pickled_or_read_from_a_pickle() -> None:
    """A file of a store or a checkpoint never becomes code."""
    pickles = re.compile(
        r"^\s*(import|from) (pickle|marshal|shelve|dill|cloudpickle)\b|allow_pickle=True", re.MULTILINE
    )
    assert [path for path in sources() if pickles.search(path.read_text(encoding="utf-8"))] == []


def test_no_module_is_named_after_nothing() -> None:
    empty_names = {"utils", "util", "helpers", "common", "misc", "manager"}
    assert [path for path in sources() if path.stem in empty_names or path.parent.name in empty_names] == []


def test_no_test_module_imports_another() -> None:
    """What several share lies in tests/support, so that every module runs alone."""
    shared = re.compile(r"^\s*(from|import) (tests\.(unit|integration|property|real)|test_)", re.MULTILINE)
    modules = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert [path for path in modules if shared.search(path.read_text(encoding="utf-8"))] == []
    beside = {
        path.name for path in modules if path.parent.name in ("unit", "property", "integration", "real")
    }
    assert {name for name in beside if not name.startswith("test_")} == set()


def test_every_package_folder_is_a_package() -> None:
    folders = {path.parent for path in sources()}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
