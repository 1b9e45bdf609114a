"""``inspect`` and ``verify`` as commands, of a folder and a bucket: the contract's keys, the log's own counts, exit codes."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from lane_stream import SECOND, lane, make_store, manifests, random_events
from placed import files_of, sizes
from typer.testing import CliRunner

from freshet_graph.schemas.store import LogHeader, Position
from freshet_graph.stream.commands.inspect import inspect as inspect_command
from freshet_graph.stream.commands.verify import verify as verify_command
from freshet_graph.stream.service.output import show_bytes
from freshet_graph.stream.store.errors import MismatchError, remedy
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.place import place_of

KEYS = {
    "snapshots",
    "events",
    "inserts",
    "deletes",
    "nodes",
    "live_edges",
    "late",
    "refused",
    "offsets",
    "lanes",
}
LANE_KEYS = {
    "snapshots", "algorithm", "parts", "bytes", "full_bytes", "saving", "cut", "replication_factor",
    "node_balance", "edge_balance", "moved_share", "foreign_parts",
}  # fmt: skip

app = typer.Typer()
app.command("inspect")(inspect_command)
app.command("verify")(verify_command)
run = CliRunner()


@pytest.fixture(scope="module")
def address(places):
    """The name of a store, as a command is given it."""
    address = places.address()
    make_store(place_of(address), lane("distdy"), lane("sep", edge_life=1))
    return address


@pytest.fixture(scope="module")
def store(address):
    """The same, which every test leaves as it was."""
    return place_of(address)


def live_pairs(events: pa.Table) -> int:
    live = set()
    for row in events.to_pylist():
        if row["op"]:
            (live.add if row["op"] > 0 else live.discard)((row["src"], row["dst"]))
    return len(live)


def test_inspect_counts_what_the_events_say(store):
    found, events = inspect(store), random_events()
    ops = events["op"].to_pylist()
    assert found.keys() >= KEYS
    assert (found["snapshots"], found["events"]) == (8, len(ops))
    assert (found["inserts"], found["deletes"]) == (ops.count(1), ops.count(-1))
    assert found["nodes"] == len({*events["src"].to_pylist(), *events["dst"].drop_null().to_pylist()})
    assert found["live_edges"] == live_pairs(events)


@pytest.mark.parametrize("lanes", [[], [lane("sep", edge_life=1)]])
def test_live_edges_are_the_logs_whatever_the_lanes_edge_life(place, lanes):
    store = make_store(place, *lanes)
    assert inspect(store)["live_edges"] == live_pairs(random_events())


def test_inspect_sums_up_a_lane_and_its_newest_quality(store):
    found = inspect(store)["lanes"]
    assert found.keys() == {"distdy", "sep"}
    for name, figures in found.items():
        assert figures.keys() >= LANE_KEYS
        every = [p for m in manifests(store, name) for p in (*m.parts, m.discarded) if p]
        assert figures["bytes"] == sum(part.bytes for part in every)
        assert figures["full_bytes"] == sum(part.full_bytes for part in every)
        assert figures["saving"] == 1 - figures["bytes"] / figures["full_bytes"]
        assert figures["cut"] == manifests(store, name)[-1].quality.cut
        assert figures["disk_bytes"] == sum(sizes(store / "lanes" / name).values())


def test_offsets_late_and_refused_are_the_last_commits(place):
    header = LogHeader(graph="g", interval_us=SECOND, ids="int")
    positions = {("a", p): Position(topic="a", partition=p, next=10 + p) for p in (0, 1)}
    with LogWriter.open(place, header) as log:
        log.commit(positions=positions, refused={"not_json": 3, "late": 2}, late=5)
    found = inspect(place)
    assert found["offsets"] == {"a": {"0": 10, "1": 11}}
    assert (found["late"], found["refused"], found["snapshots"], found["live_edges"]) == (5, 3, 0, 0)


def test_inspect_prints_one_json_object_or_a_table(address):
    result = run.invoke(app, ["inspect", address, "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["lanes"]["distdy"]["snapshots"] == 8
    table = run.invoke(app, ["inspect", address]).stdout
    assert "live_edges" in table and "Lane sep" in table and "committed" in table
    earlier = run.invoke(app, ["inspect", address, "--as-of", "2"]).stdout
    assert "live_edges" in earlier and "Lane sep" in earlier and "committed" not in earlier


def test_inspect_shows_dates_bytes_with_units_and_how_figures_are_meant(address, store):
    found = inspect(store)
    assert (found["begins"], found["ends"]) == ("1970-01-01T00:00:00Z", "1970-01-01T00:00:08Z")
    newest = datetime.fromisoformat(found["committed"])
    assert abs(newest - datetime.now(UTC)) < timedelta(days=1)
    shown = run.invoke(app, ["inspect", address])
    for wanted in ("1970-01-01T00:00:08Z", show_bytes(found["log_bytes"])):
        assert wanted in shown.stdout
    lane = found["lanes"]["sep"]
    for key in ("bytes", "full_bytes", "disk_bytes"):
        assert show_bytes(lane[key]) in shown.stdout
    assert found["assumptions"]
    assert all(sentence in shown.stderr for sentence in found["assumptions"])


def test_verify_says_whole_and_exits_with_0(address):
    result = run.invoke(app, ["verify", address, "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["ok"], found["problems"]) == (True, [])
    assert found["files"] > 50 and found["bytes"] > 10_000
    assert "is whole" in run.invoke(app, ["verify", address]).stdout


def test_verify_lists_the_problems_and_exits_with_1(store, address, change):
    path = files_of(store)["lanes/sep/snapshots/3/edges.arrow"]
    change.write(path, path.read_bytes()[:-1])
    result = run.invoke(app, ["verify", address, "--json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert not found["ok"]
    assert any(str(path) in problem for problem in found["problems"])
    text = run.invoke(app, ["verify", address])
    assert text.exit_code == 1
    assert "damaged" in text.stdout


@pytest.mark.parametrize("file", ["lanes/sep/snapshots/3/edges.arrow", "lanes/sep/lane.json"])
def test_a_damaged_file_of_a_lane_is_mended_by_making_the_lane_again(store, address, change, file):
    path = files_of(store)[file]
    change.write(path, path.read_bytes()[:-1])
    problems = json.loads(run.invoke(app, ["verify", address, "--json"]).stdout)["problems"]
    (about,) = {problem.partition(". ")[2] for problem in problems if str(path) in problem}
    assert (
        about
        == f"Stop the stream, delete the folder {store}/lanes/sep, and start it. The lane is made again from the log"
    )


def test_a_damaged_file_of_the_log_is_restored(store, address, change):
    path = files_of(store)["log/snapshots/3/events.arrow"]
    change.write(path, path.read_bytes()[:-1])
    problems = json.loads(run.invoke(app, ["verify", address, "--json"]).stdout)["problems"]
    assert any(f"{path} has" in problem and "Restore the file from a copy" in problem for problem in problems)


@pytest.mark.parametrize(
    ("file", "lane"),
    [
        ("/a/lanes/x/commits/0.json", "/a/lanes/x"),
        ("s3://b/lanes/s/lanes/x/lane.json", "s3://b/lanes/s/lanes/x"),
        ("lanes/x/state/1.arrow", "lanes/x"),
        ("/srv/lanes/log/snapshots/3/events.arrow", None),  # of a store in a folder of this name
        ("/srv/lanes/s/log/log.json", None),
        ("/srv/lanes/exports/x/1.arrow", None),
        ("/a/log/log.json", None),
    ],
)
def test_only_a_lane_is_to_be_deleted(file, lane):
    assert ("Restore" in remedy(file)) is (lane is None)
    assert lane is None or f"delete the folder {lane}, and start" in remedy(file)


@pytest.mark.parametrize("lost", ["log/log.json", "log"])
def test_a_store_without_its_log_header_is_a_problem_and_not_a_missing_store(store, address, change, lost):
    change.remove(store / lost)
    result = run.invoke(app, ["verify", address, "--json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found.keys() == {"ok", "problems", "files", "bytes"}
    assert not found["ok"]
    assert found["problems"] == [
        f"{store}/log/log.json is missing, and without it the rest of the log can't be read. Restore it from a copy"
    ]
    assert found["files"] > 50, "lanes are checked alone"


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_place_without_a_store_is_one_sentence(places, command):
    result = run.invoke(app, [command, places.address()])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "does not exist" in result.stderr


def test_a_store_is_built_from_a_file_in_order_of_time(tmp_path):
    pq.write_table(
        pa.table({"src": [1, 2, 3], "dst": [2, 3, 1], "t": [5.0, 0.5, 5.0]}), tmp_path / "e.parquet"
    )
    store = build_store(tmp_path / "e.parquet", tmp_path / "store", interval_us=SECOND, lanes=[lane("hash")])
    found = inspect(store)
    assert (found["snapshots"], found["first"], found["last"], found["events"]) == (2, 0, 5, 3)
    with pytest.raises(MismatchError, match="has a log with 1 commits already"):
        build_store(tmp_path / "e.parquet", store, interval_us=SECOND)
