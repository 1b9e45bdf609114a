"""``schedule`` and ``simulate``: their JSON, their exit codes, their sentences, and sizes from a store."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from trainer_streams import make_lane
from typer.testing import CliRunner

from freshet_graph.trainer.cli import app
from freshet_graph.trainer.strategies.dygnex.scheduling.time_model import TimeModel, group_sizes
from freshet_graph.trainer.strategies.dygnex.scheduling.workloads import stored_times

SCHEDULE_KEYS = {
    "algorithm", "groups", "gpus", "iterations", "epoch_s", "lower_bound_s", "gap", "imbalance", "efficiency", "solve_s",
}  # fmt: skip
POINT_KEYS = {"gpus", "epoch_s", "throughput", "efficiency", "imbalance", "solve_s"}


def invoke(*arguments: object) -> tuple[int, dict, str]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout) if result.exit_code == 0 else {}, result.stderr


def times_file(folder: Path, times: object) -> Path:
    (folder / "times.json").write_text(json.dumps(times))
    return folder / "times.json"


@pytest.mark.parametrize("algorithm", ["greedy", "paper", "ilp", "psg", "psg-sorted"])
def test_schedule_prints_its_keys_and_writes_the_schedule(tmp_path: Path, algorithm: str) -> None:
    times = [4.0, 1.0, 2.0, 6.5, 3.0]
    options = ("--times", times_file(tmp_path, times), "--gpus", 2, "--algorithm", algorithm, "--alpha", 0.5)
    code, result, _ = invoke("schedule", *options, "--out", tmp_path / "out.json")
    assert code == 0
    assert result.keys() == SCHEDULE_KEYS
    written = json.loads((tmp_path / "out.json").read_text())
    assert sorted(group for iteration in written for gpu in iteration for group in gpu) == [0, 1, 2, 3, 4]
    assert {len(iteration) for iteration in written} == {2}
    epoch_s = sum(max(sum(times[k] for k in gpu) for gpu in iteration) + 0.5 for iteration in written)
    assert (result["algorithm"], result["groups"], result["iterations"]) == (algorithm, 5, len(written))
    assert result["epoch_s"] == pytest.approx(epoch_s)
    assert result["gap"] == pytest.approx(epoch_s / result["lower_bound_s"] - 1)
    assert list(tmp_path.glob("*.tmp")) == []


@pytest.mark.parametrize(("groups", "chosen"), [(99, "ilp"), (100, "greedy")])
def test_auto_solves_the_integer_program_below_a_hundred_groups(
    tmp_path: Path, groups: int, chosen: str
) -> None:
    """DyGNeX appendix G."""
    times = times_file(tmp_path, np.linspace(1.0, 3.0, groups).tolist())
    code, result, _ = invoke("schedule", "--times", times, "--gpus", 4, "--algorithm", "auto")
    assert (code, result["algorithm"]) == (0, chosen)
    code, simulated, _ = invoke("simulate", "--times", times, "--gpus", "4", "--algorithm", "auto")
    assert (code, simulated["points"][0]["algorithm"]) == (0, chosen)


def test_schedule_keeps_neighbouring_groups_on_one_gpu(tmp_path: Path) -> None:
    times = times_file(tmp_path, np.linspace(1.0, 3.0, 64).tolist())
    options = ("--times", times, "--gpus", 4, "--seed", 3)
    code, plain, _ = invoke("schedule", *options)
    assert code == 0
    code, near, _ = invoke("schedule", *options, "--window", 4)
    assert code == 0
    assert near.keys() == SCHEDULE_KEYS | {"moved", "moved_before"}
    assert near["moved"] <= 0.6 * near["moved_before"]
    assert near["moved"] >= 64 + 4 * 3  # a run of 16 groups per GPU
    assert near["epoch_s"] <= 1.005 * plain["epoch_s"]
    code, alone, _ = invoke("schedule", *options, "--window", 1)
    assert (code, alone["moved"], alone["moved_before"]) == (0, 64, 64)


@pytest.mark.parametrize(
    ("times", "extra", "sentence"),
    [
        ([], [], "holds no list of seconds"),
        ({"a": 1}, [], "holds no list of seconds"),
        ([1.0, -2.0], [], "group 1: seconds must be a number from 0 to 1e+12, found -2.0"),
        ([1.0, True], [], "found true"),
        ([float("nan")], [], "group 0: seconds must be"),
        ([1.0], ["--algorithm", "greedi"], "--algorithm greedi does not exist. Did you mean greedy?"),
        ([1.0], ["--alpha", "nan"], "--alpha must be a number"),
        ([1.0], ["--alpha", "-1"], "--alpha must be a number"),
        ([1.0], ["--out", "/nowhere/out.json"], "--out /nowhere/out.json cannot be written"),
    ],
)
def test_schedule_refuses_in_a_sentence(
    tmp_path: Path, times: object, extra: list[str], sentence: str
) -> None:
    code, _, error = invoke("schedule", "--times", times_file(tmp_path, times), "--gpus", 2, *extra)
    assert code == 1
    assert sentence in " ".join(error.split())
    assert len(error.strip().splitlines()) == 1


def test_a_file_that_is_no_json_or_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "times.json").write_text("[1, ")
    code, _, error = invoke("schedule", "--times", tmp_path / "times.json", "--gpus", 2)
    assert (code, "times.json is not JSON" in error) == (1, True)
    code, _, error = invoke("schedule", "--times", tmp_path / "none.json", "--gpus", 2)
    assert (code, "none.json: open: No such file or directory (ENOENT)" in error) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["schedule", "--times", "t.json", "--gpus", "0"],
        ["schedule", "--gpus", "2"],
        ["simulate", "--store", "s"],
        ["simulate", "--store", "s", "--lane", "hash", "--times", "linear"],
        ["simulate", "--groups", "0"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert invoke(*arguments)[0] == 2


def test_simulate_prints_a_point_for_each_algorithm_and_number_of_gpus_and_draws_them(tmp_path: Path) -> None:
    options = (
        "--groups",
        300,
        "--gpus",
        "2,8",
        "--algorithm",
        "greedy,psg",
        "--plot",
        tmp_path / "scale.png",
    )
    code, result, _ = invoke("simulate", *options)
    assert code == 0
    assert [(point["algorithm"], point["gpus"]) for point in result["points"]] == [
        ("greedy", 2), ("greedy", 8), ("psg", 2), ("psg", 8),
    ]  # fmt: skip
    for point in result["points"]:
        assert point.keys() >= POINT_KEYS
        assert point["throughput"] == pytest.approx(300 / point["epoch_s"])
    assert result["points"][1]["efficiency"] > result["points"][3]["efficiency"]
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_simulate_takes_alpha_and_draws_by_its_seed() -> None:
    common = ("simulate", "--gpus", 4, "--algorithm", "psg", "--groups", 40, "--times", "lognormal")
    found = [
        invoke(*common, *extra)[1]["points"][0]["epoch_s"] for extra in ((), ("--alpha", 2.0), ("--seed", 1))
    ]
    assert found[1] == pytest.approx(found[0] + 2.0 * 10)
    assert found[2] != found[0] == invoke(*common)[1]["points"][0]["epoch_s"]


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ([], "--groups is missing"),
        (["--groups", "9", "--gpus", "4,x"], "--gpus takes whole numbers from 1"),
        (["--groups", "9", "--per-edge", "inf"], "--per-edge must be a number"),
        (["--store", "/nowhere", "--lane", "hash"], "/nowhere"),
    ],
)
def test_simulate_refuses_in_a_sentence(extra: list[str], sentence: str) -> None:
    code, _, error = invoke("simulate", *extra)
    assert code == 1
    assert sentence in " ".join(error.split())


def test_simulate_takes_sizes_from_the_lane_of_a_store(tmp_path: Path) -> None:
    """Groups are windows over what the manifests count; with --groups they are the newest."""
    lane = make_lane(tmp_path / "store")
    edges = [manifest.live_edges for manifest in lane.manifests[:]]
    assert len(set(edges)) > 1
    options = ("--store", tmp_path / "store", "--lane", "hash", "--gpus", "1", "--algorithm", "psg")
    only_edges = ("--per-node", 0, "--per-edge", 0.5, "--window", 2)
    _, whole, _ = invoke("simulate", *options, *only_edges)
    pairs = [0.5 * (a + b) for a, b in pairwise(edges)]
    assert (whole["groups"], whole["points"][0]["epoch_s"]) == (len(pairs), pytest.approx(sum(pairs)))
    _, newest, _ = invoke("simulate", *options, *only_edges, "--groups", 2)
    assert newest["points"][0]["epoch_s"] == pytest.approx(sum(pairs[-2:]))
    code, more, note = invoke("simulate", *options, *only_edges, "--groups", 99)
    assert (code, more["groups"], "fewer than --groups 99" in note) == (0, len(pairs), True)
    code, _, error = invoke("simulate", *options, "--window", 99)
    assert (code, "has 6 snapshots, and a group takes 99" in error) == (1, True)
    code, _, error = invoke("simulate", *options[:3], "distdy")
    assert (code, "has no lane 'distdy'. It has hash" in error) == (1, True)


def test_groups_are_windows_over_nodes_edges_and_snapshots(tmp_path: Path) -> None:
    assert group_sizes([1, 2, 3], [10, 20, 30], 2).tolist() == [[3, 30, 2], [5, 50, 2]]
    lane = make_lane(tmp_path / "store")
    nodes = [manifest.live_nodes for manifest in lane.manifests[:]]
    found = stored_times(str(tmp_path / "store"), "hash", TimeModel(1.0, 0.0, 0.25), 3)
    assert found.tolist() == [sum(nodes[at : at + 3]) + 0.75 for at in range(4)]


def test_the_time_model_finds_its_coefficients_again_and_none_is_negative() -> None:
    rng = np.random.default_rng(0)
    sizes = group_sizes(rng.integers(100, 2000, 40), rng.integers(1000, 50_000, 40), 4)
    true = TimeModel(3e-6, 5e-8, 0.01)
    assert TimeModel.fit(sizes, true.predict(sizes)).predict(sizes) == pytest.approx(true.predict(sizes))
    noisy = TimeModel.fit(sizes[:30], true.predict(sizes[:30]) * rng.normal(1, 0.02, 30))
    assert noisy.predict(sizes[30:]) == pytest.approx(true.predict(sizes[30:]), rel=0.05)
    falling = TimeModel.fit(sizes, 1.0 / sizes[:, 1])
    assert min(falling.per_node_s, falling.per_edge_s, falling.per_snapshot_s) >= 0
