"""Verifying a whole store: every damage is found and named, and wrong content is, even if all checksums fit."""

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from lane_stream import lane, make_store, random_events

from schemas.store import LaneManifest
from stream.store.errors import ConfigMissingError
from stream.store.files.data import checksum, open_table
from stream.store.files.records import canonical, checksum_of, read_record
from stream.store.lane.reader import LaneReader
from stream.store.verify.store import verify


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("whole"), lane("distdy"), lane("sep", edge_life=2))


@pytest.fixture
def store(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "store"))


def rewrite(store: Path, name: str, sequence: int, what: str, change) -> None:
    """Change the rows of one of a lane's files, and all records, as someone with the format's description could."""
    reader = LaneReader(store, name)
    manifest = reader.manifests[sequence]
    reference = getattr(manifest, what)
    table = open_table(reader.root, reference)
    batches = change([table.get_batch(k) for k in range(table.num_record_batches)])
    path = reader.root / reference.path
    del table
    path.unlink()
    with pa.ipc.new_file(str(path), batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    content = manifest.model_dump(mode="json")
    content[what] = {"path": reference.path, "bytes": path.stat().st_size, "checksum": checksum(path)}
    forge(reader.root, reader.manifests, sequence, content)


def forge(root: Path, manifests: list[LaneManifest], sequence: int, content: dict) -> None:
    link = None
    for manifest in manifests[sequence:]:
        path = root / f"commits/{manifest.tau}.json"
        if link is not None:
            content = read_record(path, LaneManifest).model_dump(mode="json") | {"previous": link}
        link = checksum_of(content)
        path.write_bytes(canonical(content | {"checksum": link}))


def without_last_row(batches):
    largest = max(range(len(batches)), key=lambda k: batches[k].num_rows)
    assert batches[largest].num_rows
    return [b.slice(0, b.num_rows - 1) if k == largest else b for k, b in enumerate(batches)]


def test_a_whole_store_has_no_problem_and_all_its_files_are_counted(store):
    check = verify(store)
    files = [path for path in store.rglob("*") if path.is_file() and path.name != "lock"]
    assert (check.ok, check.problems) == (True, [])
    assert check.files == len(files)
    assert check.bytes == sum(path.stat().st_size for path in files)


def test_no_store_is_no_whole_store(tmp_path):
    with pytest.raises(ConfigMissingError):
        verify(tmp_path)


def test_every_file_of_a_lane_is_checked_for_flipped_bytes_truncation_and_absence(store):
    files = [path for path in (store / "lanes").rglob("*") if path.is_file() and path.name != "lock"]
    kinds = {}
    for path in sorted(files):  # one of each kind in each lane
        kinds[
            path.relative_to(store / "lanes").parts[0], path.name if path.suffix == ".arrow" else path.suffix
        ] = path
    assert len(kinds) >= 2 * 6
    for path in kinds.values():
        content = path.read_bytes()
        for damaged in (content[: len(content) // 2], content[:-1], b"", _flipped(content)):
            path.write_bytes(damaged)
            problems = verify(store).problems
            assert any(str(path) in problem for problem in problems), path
        path.unlink()
        assert verify(store).problems, path
        path.write_bytes(content)
    assert verify(store).ok


def _flipped(content: bytes) -> bytes:
    flipped = bytearray(content)
    flipped[len(content) // 3] ^= 4
    return bytes(flipped)


def test_damage_in_one_file_does_not_hide_damage_in_others(store):
    victims = [*(store / "lanes/distdy/snapshots/2").iterdir(), *(store / "lanes/sep/snapshots/5").iterdir()]
    for path in victims:
        path.write_bytes(path.read_bytes()[:-8])
    problems = verify(store).problems
    assert all(any(str(path) in problem for problem in problems) for path in victims)


def test_a_damaged_log_leaves_the_lanes_checked_for_themselves(store):
    (store / "log/snapshots/2/events.arrow").unlink()
    (store / "lanes/sep/snapshots/5/edges.arrow").unlink()
    problems = verify(store).problems
    assert sum("log/snapshots/2/events.arrow" in problem for problem in problems) == 1
    assert sum("sep/snapshots/5/edges.arrow" in problem for problem in problems) == 1


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
def test_content_that_contradicts_the_log_is_found_though_all_checksums_fit(store, name, what, words):
    rewrite(store, name, 4, what, without_last_row)
    problems = verify(store).problems
    assert problems
    assert all(f"lanes/{name}/commits/4.json, snapshot 4" in problem for problem in problems)
    assert any(re.search(words, problem) for problem in problems), problems


def test_a_missing_part_is_found(store):
    rewrite(store, "sep", 4, "edges", lambda batches: batches[:-1])
    assert any("has 3 record batches, the lane needs 4" in problem for problem in verify(store).problems)


def test_a_base_that_says_something_else_is_found(store):
    reader = LaneReader(store, "distdy")
    manifest = reader.manifests[6]
    other = reader.manifests[3].base
    assert manifest.base and other
    content = manifest.model_dump(mode="json")
    path = reader.root / manifest.base.path
    shutil.copy(reader.root / other.path, path)
    content["base"] = {"path": manifest.base.path, "bytes": other.bytes, "checksum": other.checksum}
    forge(reader.root, reader.manifests, 6, content)
    assert any("its base: " in problem for problem in verify(store).problems)


@pytest.mark.parametrize("key", ["live_edges", "live_nodes"])
def test_wrong_counts_are_found(store, key):
    reader = LaneReader(store, "distdy")
    content = reader.manifests[2].model_dump(mode="json")
    content[key] += 1
    forge(reader.root, reader.manifests, 2, content)
    assert any(f"{key} is" in problem for problem in verify(store).problems)


def test_a_lane_of_another_store_is_found(store, tmp_path):
    other = make_store(tmp_path / "other", events=random_events(seed=7))
    shutil.copytree(store / "lanes", other / "lanes")
    assert any("made from other events" in problem for problem in verify(other).problems)


def test_a_lane_that_was_never_begun_is_no_damage(store):
    (store / "lanes/new/commits").mkdir(parents=True)
    assert verify(store).ok
