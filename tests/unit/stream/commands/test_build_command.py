"""`build`: a store from a file, without Kafka, with the lanes that `partition` measures."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from freshet_graph import open_store
from freshet_graph.stream.cli import app


def call(*arguments: object) -> tuple[int, dict, str]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout) if result.exit_code == 0 else {}, result.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    src, dst = np.random.default_rng(0).integers(40, size=(2, 400))
    pq.write_table(pa.table({"user": src, "dst": dst, "t": np.arange(400)}), tmp_path / "events.parquet")
    return tmp_path / "events.parquet"


def test_its_lanes_are_those_that_partition_measures(file: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    how = ("--parts", 3, "--interval", 50, "--param", "time_constant=100", "--columns", "src=user")
    code, built, error = call("build", file, "--store", store, "--algorithm", "sep,hash", *how)
    assert code == 0, error
    assert {key: built[key] for key in ("snapshots", "events", "nodes", "interval_s")} == {
        "snapshots": 8, "events": 400, "nodes": 40, "interval_s": 50.0,
    }  # fmt: skip
    assert built["lanes"] == ["sep", "hash"]
    assert sorted(open_store(store).lanes) == ["hash", "sep"]
    _, shown, _ = call("inspect", store)
    _, measured, _ = call("partition", file, "--algorithm", "sep,hash", *how)
    for one in measured["algorithms"]:
        assert shown["lanes"][one["algorithm"]]["cut"] == pytest.approx(one["cut"]), one["algorithm"]
    code, again, error = call("build", store, "--store", tmp_path / "coarse", "--interval", 200)
    assert (code, again.get("events"), again.get("snapshots"), again.get("lanes")) == (0, 400, 2, ["hash"]), (
        error
    )


def test_a_store_that_exists_and_a_wrong_parameter_are_refused_before_anything_is_written(
    file: Path, tmp_path: Path
) -> None:
    columns = ("--columns", "src=user")
    assert call("build", file, "--store", tmp_path / "store", *columns)[0] == 0
    code, _, error = call("build", file, "--store", tmp_path / "store", *columns)
    assert (code, "Choose another folder" in error) == (1, True)
    arguments = ("--algorithm", "hash", "--param", "hubs=0.2")
    code, _, error = call("build", "absent", "--store", tmp_path / "other", *arguments)
    assert (code, "none of hash takes hubs" in error) == (1, True)
    assert not (tmp_path / "other").exists()


def test_an_edge_leaves_the_lanes_its_life_after_its_last_occurrence(tmp_path: Path) -> None:
    file, store = tmp_path / "events.parquet", tmp_path / "store"
    pq.write_table(pa.table({"src": [1, 2, 1, 3], "dst": [2, 3, 2, 4], "t": [0, 1, 10, 20]}), file)
    how = ("build", file, "--store", store, "--interval", 10)
    code, _, error = call(*how, "--edge-life", 20)
    assert code == 0, error
    pairs = [
        set(
            zip(*(graph.ids.take(pa.array(ends)).to_pylist() for ends in (graph.src, graph.dst)), strict=True)
        )
        for graph in open_store(store).window("hash", 3)
    ]
    assert pairs == [{(1, 2), (2, 3)}, {(1, 2), (2, 3)}, {(1, 2), (3, 4)}]


def test_a_life_that_is_no_number_of_intervals_is_refused(file: Path, tmp_path: Path) -> None:
    how = ("build", file, "--store", tmp_path / "store", "--columns", "src=user")
    code, _, error = call(*how, "--interval", 60, "--edge-life", 90)
    assert (code, "--edge-life 90 is no whole number of intervals of 60 s. Give 60 or 120" in error) == (
        1,
        True,
    )
    code, _, error = call(*how, "--interval", 60, "--edge-life", 30)
    assert (code, "intervals of 60 s. Give 60" in error) == (1, True)
    assert call(*how, "--edge-life", 90)[0] == 2
    assert not (tmp_path / "store").exists()
