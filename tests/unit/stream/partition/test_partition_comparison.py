"""`partition` by several partitioners: one table, one object, one picture; a partitioner that refuses says why."""

import csv
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from freshet_graph.stream.commands.partition import partition
from freshet_graph.stream.partition import comparison
from freshet_graph.stream.partition.interface import algorithms

app = typer.Typer()
app.command()(partition)

FEW = ("distdy", "hash", "kl", "metis", "sep", "sep-two-pass")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Six of the registered partitioners: every kind, and one that refuses."""
    known = algorithms()
    monkeypatch.setattr(comparison, "algorithms", lambda: {name: known[name] for name in FEW})


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    src, dst = np.random.default_rng(0).integers(40, size=(2, 400))
    pq.write_table(pa.table({"src": src, "dst": dst, "t": np.arange(400)}), "events.parquet")
    return tmp_path / "events.parquet"


def call(*arguments, algorithm="all"):
    return CliRunner().invoke(app, [str(a) for a in (*arguments, "--algorithm", algorithm)])


def test_every_partitioner_is_in_the_object_with_its_figures_or_why_not(file):
    result = call(file, "--parts", 3, "--snapshots", 4, "--param", "max_pairs=5", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {key: found[key] for key in ("algorithm", "parts", "nodes", "edges", "snapshots", "plot")} == {
        "algorithm": "all",
        "parts": 3,
        "nodes": 40,
        "edges": 400,
        "snapshots": 4,
        "plot": "events-partitioners.png",
    }
    by_name = {one["algorithm"]: one for one in found["algorithms"]}
    assert list(by_name) == ["distdy", "hash", "kl", "metis", "sep", "sep-two-pass"]
    assert by_name["kl"]["error"].startswith("kl takes 5 live pairs at most")
    assert all(0 <= one["cut"] <= 1 for name, one in by_name.items() if name != "kl")


def test_the_table_has_the_lowest_cut_first_and_the_picture_is_a_png(file, tmp_path):
    result = call(
        file, "--parts", 3, "--snapshots", 4, "--plot", tmp_path / "all.png", "--param", "max_pairs=5"
    )
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "events.parquet in 3 parts" in lines[0]
    rows = [line.split() for line in lines if line.split() and line.split()[0] in FEW and ":" not in line]
    assert [row[:2] for row in rows[3:]] == [["sep", "edge"], ["sep-two-pass", "edge"]], (
        "vertex partitioners come first"
    )
    assert sorted(row[0] for row in rows[:3]) == ["distdy", "hash", "metis"]
    cuts = [float(row[2]) for row in rows[:3]]
    assert cuts == sorted(cuts)
    assert all("…" not in line for line in lines)
    assert "kl: kl takes 5 live pairs at most" in result.stdout
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_kl_has_the_limit_that_it_has_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = np.random.default_rng(0).choice(3000 * 3000, 10_500, replace=False)
    pq.write_table(pa.table({"src": pairs // 3000, "dst": pairs % 3000, "t": np.arange(10_500)}), "e.parquet")
    result = call("e.parquet", "--parts", 2, "--json")
    assert result.exit_code == 0, result.output
    (kl,) = [one for one in json.loads(result.stdout)["algorithms"] if one["algorithm"] == "kl"]
    assert 0 <= kl["cut"] <= 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--parts", 0], "error: every partitioner needs at least one part, found parts = 0"),
        (["--parts", 2, "--param", "colour=red"], "error: no partitioner takes colour"),
        (["--parts", 2, "--plot", "/nowhere/x.png"], "error: --plot /nowhere/x.png: it must be a file"),
    ],
)
def test_what_no_partitioner_can_do_is_one_sentence(file, arguments, sentence):
    result = call(file, *arguments)
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stdout == ""


def test_named_partitioners_have_an_object_each_in_the_order_of_their_names(file, tmp_path):
    cut = ("--parts", 3, "--snapshots", 4)
    params = ("--param", "max_pairs=5", "--param", "hubs=0.5")
    result = call(file, *cut, *params, "--json", algorithm="sep,kl,hash,sep")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["algorithm"] == "sep,kl,hash,sep"
    assert printed["plot"] is None
    assert [one["algorithm"] for one in printed["algorithms"]] == ["sep", "kl", "hash"]
    assert "error" in printed["algorithms"][1]
    alone = json.loads(call(file, *cut, "--param", "hubs=0.5", "--json", algorithm="sep").stdout)
    same = {key: value for key, value in alone.items() if "seconds" not in key and key != "edges_per_s"}
    assert same == {key: printed["algorithms"][0][key] for key in same}
    assert list(tmp_path.glob("*.png")) == [], "a picture of named ones is drawn if it is asked for"
    drawn = call(file, *cut, "--plot", "two.png", algorithm="hash,sep")
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_is_written_for_papers_and_for_programs(file):
    cut = (file, "--parts", 3, "--snapshots", 4)
    arguments = (*cut, "--param", "max_pairs=5")
    markdown = call(*arguments, "--format", "markdown", algorithm="hash,kl,sep")
    assert markdown.exit_code == 0, markdown.output
    heading, rule, *rows = markdown.stdout.splitlines()
    assert heading == (
        "| algorithm | kind | cut or discarded % | train RF | node balance | edge balance | moved % | seconds |"
    )
    assert rule.startswith("| --- | --- | ---: |")
    assert [row.split(" | ")[0] for row in rows] == ["| hash", "| sep"]
    assert "kl: kl takes 5 live pairs at most" in markdown.stderr
    latex = call(*cut, "--format", "latex", algorithm="sep-two-pass").stdout.splitlines()
    assert latex[0].startswith(r"\begin{tabular}{llr")
    assert latex[-1] == r"\end{tabular}"
    assert latex[2].startswith(r"algorithm & kind & cut or discarded \% &")
    assert latex[4].startswith("sep-two-pass & edge & ")
    text = call(*arguments, "--format", "csv", algorithm="hash,kl").stdout
    by_name = {row["algorithm"]: row for row in csv.DictReader(io.StringIO(text))}
    exact = json.loads(call(*arguments, "--json", algorithm="hash,kl").stdout)["algorithms"][0]
    assert float(by_name["hash"]["cut"]) == exact["cut"]
    assert by_name["hash"]["error"] == by_name["kl"]["cut"] == ""
    assert by_name["kl"]["error"].startswith("kl takes 5 live pairs")


@pytest.mark.parametrize(
    ("algorithm", "param", "sentence"),
    [
        ("hash,sepp", "hubs=0.1", "did you mean sep?"),
        ("hash,ldg", "hubs=0.1", "error: none of hash, ldg takes hubs"),
    ],
)
def test_names_and_parameters_are_checked_before_the_file_is_read(algorithm, param, sentence):
    result = call("absent.parquet", "--parts", 2, "--param", param, algorithm=algorithm)
    assert result.exit_code == 1
    assert sentence in result.stderr.lower()


def test_options_of_one_algorithm_and_of_all_are_not_mixed(file, tmp_path):
    assert call(file, "--parts", 2, "--out", tmp_path / "x").exit_code == 2
    alone = CliRunner().invoke(app, [str(file), "--algorithm", "hash", "--parts", "2", "--plot", "x.png"])
    assert alone.exit_code == 2
