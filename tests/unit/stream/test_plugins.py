"""Partitioners of other distributions: a broken one is named and harms nobody else, a built-in's name stays its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from installed import install, look_again

from freshet_graph.stream.partition.interface import (
    PARTITIONERS,
    PartitionError,
    algorithms,
    broken_algorithms,
    create,
)
from freshet_graph.stream.partition.vertex.hash import Hash

GOOD = """
from freshet_graph.stream.partition.vertex.hash import Hash

class Theirs(Hash):
    name = "theirs"
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    look_again()
    yield folder
    look_again()
    for name in [name for name in sys.modules if name.startswith(("good_parts", "bad_parts"))]:
        del sys.modules[name]


def test_an_installed_partitioner_is_found_and_made(site: Path) -> None:
    install(site, "good-parts", GOOD, {"theirs": "good_parts:Theirs"})
    made = create("theirs", parts=2)
    assert isinstance(made, Hash)
    assert made.name == "theirs"


def test_an_installed_one_may_have_the_decorator_of_the_tree(
    site: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    algorithms()
    monkeypatch.setattr(PARTITIONERS, "registered", dict(PARTITIONERS.registered))
    source = "from freshet_graph.stream.partition.interface import PARTITIONERS\n" + GOOD.replace(
        "class", "@PARTITIONERS.register\nclass"
    )
    install(site, "good-parts", source, {"theirs": "good_parts:Theirs"})
    for _ in range(2):
        assert create("theirs", parts=2).name == "theirs"
    assert not caplog.records


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        ("import nowhere_at_all\n", "bad_parts:X", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("raise SystemExit(3)\n", "bad_parts:X", "SystemExit: 3"),
        ("X = 1 / 0\n", "bad_parts:X", "ZeroDivisionError: division by zero"),
        ("Y = 1\n", "bad_parts:X", "AttributeError: module 'bad_parts' has no attribute 'X'"),
        ("class X: kind = 'hyperedge'\n", "bad_parts:X", "has no kind, vertex or edge"),
    ],
)
def test_a_broken_one_is_named_when_asked_for_and_warned_of_once_otherwise(
    site: Path, caplog: pytest.LogCaptureFixture, source: str, target: str, told: str
) -> None:
    install(site, "bad-parts", source, {"abroken": target})
    install(site, "good-parts", GOOD, {"theirs": "good_parts:Theirs"})
    assert create("hash", parts=2).name == "hash"
    assert create("theirs", parts=2).name == "theirs"
    (warning,) = [record.getMessage() for record in caplog.records]
    for text in ("entry point abroken (freshet.partitioners) of bad-parts 1.2 cannot be loaded", told):
        assert text in warning
    with pytest.raises(PartitionError) as refused:
        create("abroken", parts=2)
    assert str(refused.value) == f"partitioner abroken is not usable: {warning}"
    assert "abroken" not in algorithms()
    with pytest.raises(PartitionError, match=r"expected one of .*theirs \(and, not usable, abroken\)"):
        create("nobody", parts=2)


def test_one_with_a_built_ins_name_is_refused_and_the_built_in_stays(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = "import sys\nsys.stolen = True\nfrom freshet_graph.stream.partition.vertex.ldg import Ldg as X\n"
    install(site, "bad-parts", source, {"hash": "bad_parts:X"})
    assert algorithms()["hash"] is Hash
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == (
        "entry point hash (freshet.partitioners) of bad-parts 1.2 is ignored: its name is that of a built-in one. "
        "Rename it."
    )
    assert not hasattr(sys, "stolen"), "it was imported"
    assert broken_algorithms() == {}


def test_of_two_of_one_name_one_is_used_and_the_other_is_told_by_both_distributions(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(site, "good-parts", GOOD, {"theirs": "good_parts:Theirs"})
    install(site, "good-parts-too", GOOD, {"theirs": "good_parts_too:Theirs"})
    assert create("theirs", parts=2).name == "theirs"
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "good-parts 1.2" in warning and "good-parts-too 1.2" in warning


def test_a_broken_one_takes_the_name_from_nobody(site: Path) -> None:
    install(site, "bad-parts", "import nowhere_at_all\n", {"theirs": "bad_parts:X"})
    install(site, "good-parts", GOOD, {"theirs": "good_parts:Theirs"})
    assert create("theirs", parts=2).name == "theirs"
    assert broken_algorithms() == {}


def test_the_command_lists_a_broken_one_beside_all_that_work(site: Path, tmp_path: Path) -> None:
    """As a user sees it: one object on standard output, the warning on standard error."""
    install(site, "bad-parts", "import nowhere_at_all\n", {"abroken": "bad_parts:X"})
    pq.write_table(pa.table({"src": [1, 2, 3], "dst": [2, 3, 1], "t": [1, 2, 3]}), tmp_path / "e.parquet")
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from freshet_graph.stream.start import main; main()"),
            *("partition", "e.parquet", "--algorithm", "all", "--parts", "2", "--json"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{Path(__file__).parents[3]}"},
        capture_output=True,
        text=True,
        check=True,
    )
    listed = {one["algorithm"]: one for one in json.loads(done.stdout)["algorithms"]}
    assert "No module named 'nowhere_at_all'" in listed["abroken"]["error"]
    assert listed["hash"]["cut"] >= 0
    assert done.stderr.count("abroken") == 1
