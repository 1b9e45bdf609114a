"""Verifying a whole store, in a folder or a bucket: every damage is found, and wrong content is, even if all checksums fit."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash
from lane_stream import lane, make_store, random_events
from placed import copied, files_of, problems_of

from freshet_graph.schemas.store import LaneManifest
from freshet_graph.stream.store.errors import ConfigMissingError
from freshet_graph.stream.store.files.data import open_table
from freshet_graph.stream.store.files.records import canonical, checksum_of, read_record
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.sweep import KEPT_STATES
from freshet_graph.stream.store.verify.store import verify

SNAPSHOTS = 7


@pytest.fixture(scope="module")
def store(places):
    """A store that every test leaves as it was."""
    events = random_events(snapshots=SNAPSHOTS)
    return make_store(places.new(), lane("distdy"), lane("sep", edge_life=2), events=events)


def rewrite(change, store, name: str, sequence: int, what: str, edit) -> None:
    """Change the rows of one of a lane's files, and all records, as someone with the format's description could."""
    reader = LaneReader(store, name)
    manifest = reader.manifests[sequence]
    reference = getattr(manifest, what)
    table = open_table(reader.root, reference)
    batches = edit([table.get_batch(k) for k in range(table.num_record_batches)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    replaced(change, reader, sequence, what, sink.getvalue().to_pybytes())


def replaced(change, reader, sequence: int, what: str, content: bytes) -> None:
    """Give one of a lane's files other content, and forge the records after it."""
    manifest = reader.manifests[sequence]
    path = getattr(manifest, what).path
    change.write(reader.root / path, content)
    record = manifest.model_dump(mode="json")
    record[what] = {"path": path, "bytes": len(content), "checksum": xxhash.xxh64_hexdigest(content)}
    forge(change, reader.root, reader.manifests, sequence, record)


def forge(change, root, manifests: list[LaneManifest], sequence: int, content: dict) -> None:
    link = None
    for manifest in manifests[sequence:]:
        path = root / f"commits/{manifest.tau}.json"
        if link is not None:
            content = read_record(path, LaneManifest).model_dump(mode="json") | {"previous": link}
        link = checksum_of(content)
        change.write(path, canonical(content | {"checksum": link}))


def without_last_row(batches):
    largest = max(range(len(batches)), key=lambda k: batches[k].num_rows)
    assert batches[largest].num_rows
    return [b.slice(0, b.num_rows - 1) if k == largest else b for k, b in enumerate(batches)]


def files_in_use(store):
    """All files but older states: in a bucket, which knows whole seconds, they go a start later."""
    files = files_of(store)
    for name in ("distdy", "sep"):
        states = sorted(
            (n for n in files if n.startswith(f"lanes/{name}/state/")), key=lambda n: int(Path(n).stem)
        )
        for older in states[:-KEPT_STATES]:
            del files[older]
    return files


def test_a_whole_store_has_no_problem_and_all_its_files_are_counted(store):
    check = verify(store)
    files = files_in_use(store).values()
    assert (check.ok, check.problems) == (True, [])
    assert check.files == len(files)
    assert check.bytes == sum(path.stat().st_size for path in files)


def test_no_store_is_no_whole_store(place):
    with pytest.raises(ConfigMissingError):
        verify(place)


def test_a_damaged_log_leaves_the_lanes_checked_for_themselves(store, change):
    victims = [
        files_of(store)[name]
        for name in ("log/snapshots/2/events.arrow", "lanes/sep/snapshots/5/edges.arrow")
    ]
    for path in victims:
        change.remove(path)
    problems = problems_of(store)
    assert all(sum(str(path) in problem for problem in problems) == 1 for path in victims)


@pytest.mark.parametrize(
    ("name", "what", "words"),
    [
        ("distdy", "assignment", "without|no home|nodes, the manifest says"),
        ("distdy", "edges", "aren't the"),
        ("distdy", "segments", "other features than the log"),
        ("sep", "edges", "aren't the"),
        ("sep", "event_parts", "fewer than|latest insert"),
    ],
)
def test_content_that_contradicts_the_log_is_found_though_all_checksums_fit(store, change, name, what, words):
    rewrite(change, store, name, 4, what, without_last_row)
    problems = problems_of(store)
    assert problems
    assert all(f"lanes/{name}/commits/4.json, snapshot 4" in problem for problem in problems)
    assert any(re.search(words, problem) for problem in problems), problems


def test_a_missing_part_is_found(store, change):
    rewrite(change, store, "sep", 4, "edges", lambda batches: batches[:-1])
    assert any("has 3 record batches, the lane needs 4" in problem for problem in problems_of(store))


def test_a_base_that_says_something_else_is_found(store, change):
    reader = LaneReader(store, "distdy")
    manifest = reader.manifests[6]
    other = reader.manifests[3].base
    assert manifest.base and other
    replaced(change, reader, 6, "base", (reader.root / other.path).read_bytes())
    assert any("its base: " in problem for problem in problems_of(store))


@pytest.mark.parametrize("key", ["live_edges", "live_nodes"])
def test_wrong_counts_are_found(store, change, key):
    reader = LaneReader(store, "distdy")
    content = reader.manifests[2].model_dump(mode="json")
    content[key] += 1
    forge(change, reader.root, reader.manifests, 2, content)
    assert any(f"{key} is" in problem for problem in problems_of(store))


def test_a_lane_of_another_store_is_found(store, places):
    other = make_store(places.new(), events=random_events(seed=7, snapshots=SNAPSHOTS))
    copied(store / "lanes", other / "lanes")
    assert any("made from other events" in problem for problem in problems_of(other))


def test_a_lane_that_was_never_begun_is_no_damage(tmp_path):
    """A folder only: a bucket has no empty ones."""
    store = make_store(tmp_path, events=random_events(snapshots=1))
    (store / "lanes/new/commits").mkdir(parents=True)
    assert verify(store).ok
