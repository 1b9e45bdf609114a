"""The plan's formulae beside a real store of a stream as it supposes."""

import json
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from log_events import event_columns
from typer.testing import CliRunner

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.cli import app
from freshet_graph.stream.service.output import show_bytes
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.plan import DAY_S, STREAM_PROCESS_BYTES, TRAINER_PROCESS_BYTES, Stream, plan
from freshet_graph.stream.store.window.view import WindowView

SNAPSHOTS, INTERVAL_S = 6, 100
STREAM = Stream(
    rate=300,
    nodes=5_000,
    features=32,
    interval_s=INTERVAL_S,
    changed=0.2,
    keep_days=SNAPSHOTS * INTERVAL_S / DAY_S,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(0)
    tables = []
    for k in range(SNAPSHOTS):
        start = k * INTERVAL_S * US_PER_S
        n, v = int(STREAM.rate * INTERVAL_S), int(STREAM.changed * STREAM.nodes)
        edges = {
            "op": np.ones(n), "src": rng.integers(0, STREAM.nodes, n), "dst": rng.integers(0, STREAM.nodes, n),
            "t": start + np.sort(rng.integers(0, INTERVAL_S * US_PER_S, n)),
        }  # fmt: skip
        values = pa.array(rng.standard_normal(v * STREAM.features).astype(np.float32))
        described = {
            "op": np.zeros(v), "src": rng.choice(STREAM.nodes, v, replace=False), "t": np.full(v, start),
            "features": pa.ListArray.from_arrays(pa.array(np.arange(v + 1, dtype=np.int32) * STREAM.features), values),
        }  # fmt: skip
        tables += [event_columns(described), event_columns(edges)]
    return build_store(
        pa.concat_tables(tables), tmp_path_factory.mktemp("planned"), interval_us=INTERVAL_S * US_PER_S,
        lanes=[Lane(name="hash", algorithm="hash", parts=4)], node_features=STREAM.features,
    )  # fmt: skip


def test_log_and_lane_are_as_large_as_planned(store):
    figures, found = plan(STREAM), inspect(store)
    days = STREAM.keep_days
    assert found["log_bytes"] == pytest.approx(figures.log_bytes_a_day * days, rel=0.1)
    lane = LaneReader(store, "hash")
    planned = figures.lane_bytes_a_day * days  # rather too much than too little: every pair in two parts
    assert lane.totals.disk_bytes <= planned <= 1.5 * lane.totals.disk_bytes
    assert lane.manifests[-1].live_edges == pytest.approx(figures.live_pairs, rel=0.05)


def test_a_window_is_as_large_as_planned(store):
    lane = LaneReader(store, "hash")
    view = WindowView(lane, STREAM.window)
    for manifest in lane.manifests:
        view.advance(manifest)
    view.csr(view.taus[-1])
    assert view.memory_bytes == pytest.approx(
        plan(STREAM).trainer_memory_bytes - TRAINER_PROCESS_BYTES, rel=0.5
    )


def test_files_a_day_are_those_that_a_store_has(store):
    snapshots = [path for path in store.rglob("*.arrow") if "snapshots" in path.parts]
    per_snapshot = (len(snapshots) + SNAPSHOTS) / SNAPSHOTS  # and a manifest
    figures = plan(STREAM)
    assert figures.files_a_day / figures.snapshots_a_day == pytest.approx(per_snapshot, abs=0.1)


def test_more_of_anything_takes_more(store):
    usual = plan(STREAM)
    for more in (
        Stream(600, 5_000, 32, 100), Stream(300, 50_000, 32, 100), Stream(300, 5_000, 64, 100), Stream(300, 5_000, 32, 100, 2),
    ):  # fmt: skip
        figures = plan(more)
        assert figures.disk_bytes_a_day > usual.disk_bytes_a_day
        assert figures.stream_memory_bytes > usual.stream_memory_bytes


def call(*options: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["plan", *map(str, options), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


GIVEN = ["--rate", 50, "--nodes", 1_000_000, "--interval", 3600]


def test_distinct_pairs_bound_memory_and_disk():
    every, some = plan(replace(STREAM, keep_days=30)), plan(replace(STREAM, keep_days=30, pairs=1000))
    assert some.live_pairs == 1000
    few, many = (found.stream_memory_bytes - STREAM_PROCESS_BYTES for found in (some, every))
    assert 0 < few < many / 50
    plain = plan(replace(STREAM, features=0, keep_days=30, pairs=1000))
    assert plain.lane_bytes_a_day / plain.snapshots_a_day < 20_000  # headers of files, and few pairs
    assert plan(replace(STREAM, pairs=10**12)) == plan(STREAM)


def test_the_command_says_that_every_event_is_taken_for_a_new_pair_and_how_to_say_otherwise():
    found = call(*GIVEN)
    assert found["live_pairs"] == 50 * 86_400 * 365
    assert found["assumptions"][0].startswith("Every event is of a new pair.")
    assert "--pairs" in found["assumptions"][0] and "--repeated" in found["assumptions"][0]
    assert "No pair is deleted" in found["assumptions"][1]
    assert (
        found["reached_on"]
        == (date.fromisoformat(call(*GIVEN, "--keep-days", 0)["reached_on"]) + timedelta(365)).isoformat()
    )
    shown = CliRunner().invoke(app, ["plan", *map(str, GIVEN)])
    assert f"{found['stream_memory_bytes'] / 2**30:,.1f} GiB" in shown.stdout
    assert found["reached_on"] in shown.stdout
    assert all(sentence in shown.stderr for sentence in found["assumptions"])
    assert call(*GIVEN, "--repeated", 0.75)["assumptions"][0].startswith(
        "25.0% of the events are of a new pair"
    )
    assert call(*GIVEN, "--pairs", 3000)["assumptions"][0].startswith("Events are of 3,000 distinct pairs")


def test_bytes_have_the_unit_in_which_they_are_read():
    for count, shown in (
        (0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (2.5 * 2**20, "2.5 MiB"), (3_767_525.7 * 2**20, "3.6 TiB"),
        (2**60, "1,024.0 PiB"),
    ):  # fmt: skip
        assert show_bytes(count) == shown


def test_memory_is_that_of_whole_processes():
    """How large they are is compared with processes at work in the tests of signals and of ranks."""
    found = call("--rate", 1, "--nodes", 100, "--interval", 60, "--pairs", 100)
    assert found["stream_memory_bytes"] > STREAM_PROCESS_BYTES > 200 * 2**20
    assert found["trainer_memory_bytes"] > TRAINER_PROCESS_BYTES > 500 * 2**20
    assert any(
        "Processes take 360 MiB (stream) and 960 MiB (trainer)" in told for told in found["assumptions"]
    )


def test_what_is_not_given_is_measured_in_a_store(store):
    found = call("--store", store, "--keep-days", STREAM.keep_days)
    stream = found["stream"]
    assert stream["rate"] == pytest.approx(STREAM.rate)
    assert (stream["nodes"], stream["features"], stream["interval_s"]) == (STREAM.nodes, 32, INTERVAL_S)
    assert stream["changed"] == pytest.approx(STREAM.changed)
    live, inserts = inspect(store)["live_edges"], STREAM.rate * INTERVAL_S * SNAPSHOTS
    assert stream["repeated"] == pytest.approx(1 - live / inserts)
    assert found["live_pairs"] == pytest.approx(live, rel=0.001)
    assert found["reached_on"] == "1970-01-01"
    assert f"were measured in {store}" in found["assumptions"][0]
    assert call("--store", store, "--rate", 7, "--pairs", 99)["stream"] | {
        "rate": 7,
        "pairs": 99,
        "repeated": 0,
    } == (stream | {"rate": 7, "pairs": 99, "repeated": 0, "keep_days": 365})


@pytest.mark.parametrize("share", [0.1, 1, 3])
def test_a_plan_of_a_store_has_no_less_than_is_there_and_grows_from_it(store, share):
    described = inspect(store)
    present_bytes = described["log_bytes"] + described["lanes"]["hash"]["disk_bytes"]
    found = call("--store", store, "--keep-days", STREAM.keep_days * share)
    more = max(0, share - 1)
    new_pairs = described["live_edges"] * more  # as many per day as so far
    assert found["live_pairs"] == pytest.approx(described["live_edges"] + new_pairs, rel=0.001)
    assert found["kept_bytes"] == pytest.approx(present_bytes * (1 + more), rel=0.35 if more else 1e-6)
    assert found["kept_bytes"] >= present_bytes
    assert f"The store has {described['live_edges']:,} live pairs" in found["assumptions"][1]
    assert call("--store", store, "--keep-days", 1, "--pairs", 99)["live_pairs"] == described["live_edges"]
    more_lanes = call("--store", store, "--keep-days", 0, "--lanes", 2)["kept_bytes"]
    assert more_lanes == pytest.approx(present_bytes + described["lanes"]["hash"]["disk_bytes"])


@pytest.mark.parametrize(
    "options",
    [["--rate", 5], ["--store", "x", "--pairs", 3, "--repeated", 0.5]],
    ids=["too few", "both"],
)
def test_what_does_not_go_together_is_usage(options):
    assert CliRunner().invoke(app, ["plan", *map(str, options)]).exit_code == 2
