"""A partitioner of another package: a wrong result of its `_place` is one sentence, and others of a comparison have figures."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from freshet_graph.schemas.events import event_schema
from freshet_graph.stream.commands.partition import partition
from freshet_graph.stream.partition.edge.hdrf import Hdrf, HdrfOptions
from freshet_graph.stream.partition.interface import PARTITIONERS, PartitionError, PartitionerSetting
from freshet_graph.stream.partition.offline import partition_events
from freshet_graph.stream.partition.vertex.base import VertexPartitionerOptions
from freshet_graph.stream.partition.vertex.hash import Hash

K = 3


def events():
    """Pairs (0, 1), (2, 3) … at distinct times, the first of which ends in the last of three snapshots."""
    pairs = [(1, 2 * i, 2 * i + 1) for i in range(8)] + [(-1, 0, 1)]
    rows = [
        {"op": op, "src": src, "dst": dst, "t": t, "weight": 1.0} for t, (op, src, dst) in enumerate(pairs)
    ]
    return pa.Table.from_pylist(rows, schema=event_schema("int"))


def of_nodes(change):
    class Bad(Hash):
        name = "bad"

        def _place(self, delta):
            node, part = super()._place(delta)
            return change(delta, node, part.copy())

    return Bad(PartitionerSetting(K), VertexPartitionerOptions())


def with_part(part_of_first):
    def change(delta, node, part):
        part[:1] = part_of_first
        return node, part

    return change


def twice(delta, node, part):
    return np.append(node, node[:1]), np.append(part, (part[:1] + 1) % K)


def left(delta, node, part):
    return np.append(node, delta.left), np.append(part, 0 * delta.left)


def beyond(delta, node, part):
    return node + 100, part


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda delta, node, part: (node[1:], part[1:]),
            "partitioner bad, snapshot 0: node 0 entered and got no part (1 in all). `_place` names every node of "
            "delta.entered, by dense id",
        ),
        (with_part(K), "partitioner bad, snapshot 0: node 0 got part 3. `_place` gives parts from 0 to 2"),
        (with_part(-1), "partitioner bad, snapshot 0: node 0 got part -1. `_place` gives parts from 0 to 2"),
        (twice, "partitioner bad, snapshot 0: node 0 got a part twice. `_place` names live nodes, each once"),
        (left, "partitioner bad, snapshot 2: node 0 is not live and got a part. `_place` names live nodes"),
        (beyond, "partitioner bad, snapshot 0: there is no node 100. `_place` gives nodes from 0 to "),
        (lambda delta, node, part: (node, part[1:]), "snapshot 0: `_place` gave no nodes with a part each"),
        (lambda delta, node, part: (node, part / 2), "snapshot 0: `_place` gave no nodes with a part each"),
        (lambda delta, node, part: None, "snapshot 0: `_place` gave no nodes with a part each"),
    ],
)
def test_a_wrong_part_of_a_node_is_one_sentence(change, sentence):
    with pytest.raises(PartitionError) as refused:
        partition_events(events(), of_nodes(change), num_slices=3)
    assert sentence in str(refused.value)


class Restless(Hash):
    """Node 0 moves twice in snapshot 1."""

    name = "bad"

    def _place(self, delta):
        node, part = super()._place(delta)
        old = np.zeros(2 * (delta.tau == 1), np.int64)
        return np.append(node, old), np.append(part, (self.home()[old] + 1) % K)


def test_an_old_node_that_moves_twice_in_a_snapshot_is_refused():
    bad = Restless(PartitionerSetting(K), VertexPartitionerOptions())
    with pytest.raises(PartitionError, match="snapshot 1: node 0 got a part twice"):
        partition_events(events(), bad, num_slices=3)


def of_events(change):
    class Bad(Hdrf):
        name = "bad"

        def _place(self, delta):
            return change(self, delta, super()._place(delta))

    return Bad(PartitionerSetting(K), HdrfOptions())


def event_part(changed):
    def change(bad, delta, placed):
        return replace(
            placed, assignment=replace(placed.assignment, event_part=changed(placed.assignment.event_part))
        )

    return change


def homeless(bad, delta, placed):
    bad._home[delta.entered[:1]] = -1
    return placed


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (event_part(lambda part: part + K), "snapshot 0: event 0 of it got part "),
        (
            event_part(lambda part: part[1:]),
            "snapshot 0: 2 events got a part, it has 3. `_place` gives event_part",
        ),
        (
            event_part(lambda part: None),
            "snapshot 0: no events got a part, it has 3. `_place` gives event_part",
        ),
        (
            event_part(lambda part: np.maximum(part, 0)),
            "snapshot 2: event 2 of it is a delete and got part 0",
        ),
        (
            homeless,
            "snapshot 0: node 0 entered and got no home (1 in all). `_place` sets _home of every node of delta.entered",
        ),
    ],
)
def test_a_wrong_part_of_an_event_is_one_sentence(change, sentence):
    with pytest.raises(PartitionError) as refused:
        partition_events(events(), of_events(change), num_slices=3)
    assert str(refused.value).startswith("partitioner bad, ")
    assert sentence in str(refused.value)


class Crashing(Hash):
    """It works on a graph of few nodes only."""

    name = "badk"

    def _place(self, delta):
        if delta.num_nodes > 5:
            return np.empty(0)[[7]]
        return super()._place(delta)


def test_one_that_fails_leaves_the_others_of_a_comparison_their_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PARTITIONERS.registered, "badk", Crashing)
    pq.write_table(pa.table({"src": [1, 2, 3, 4], "dst": [5, 6, 7, 8], "t": [1, 2, 3, 4]}), "events.parquet")
    app = typer.Typer()
    app.command()(partition)
    arguments = ["events.parquet", "--algorithm", "hash,badk", "--parts", "2"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    good, bad = json.loads(result.stdout)["algorithms"]
    assert good["nodes"] == 8
    assert bad["error"].startswith("partitioner badk failed with IndexError: index 7 is out of bounds")
    assert bad["error"].endswith("Run it alone, with --algorithm badk, to see where")
    table = CliRunner().invoke(app, arguments).stdout
    assert "badk: partitioner badk failed with IndexError" in table


def test_the_program_of_the_page_registers_a_partitioner_in_its_own_process(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[4] / "docs" / "partitioning.md"
    (program,) = re.findall(r"^```python\n(.*?)```$", page.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PARTITIONERS, "registered", dict(PARTITIONERS.registered))
    pq.write_table(
        pa.table({"src": np.arange(40), "dst": np.arange(40) + 1, "t": np.arange(40)}), "events.parquet"
    )
    exec(program, {"__name__": "own"})
    assert float(capsys.readouterr().out) == 1
