"""Snapshots that replace most pairs: files list all pairs where that is smaller, and everyone reads the same graph."""

import numpy as np
import pyarrow as pa
import pytest
from forge import reforged
from lane_stream import SECOND, lane, make_store
from placed import problems_of

from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.store import FORMAT_VERSION, WHOLE_PAIRS, LaneManifest
from freshet_graph.stream.store.errors import CorruptError, FormatVersionError
from freshet_graph.stream.store.files.records import read_record
from freshet_graph.stream.store.lane.diff import PairRows, is_smaller_whole
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.window.view import WindowView

PAIRS, SNAPSHOTS = 400, 5


def replacing(share: float, weights: bool = False) -> pa.Table:
    """Snapshots of so many pairs, each with a share of them replaced: deletes first, then inserts."""
    rng = np.random.default_rng(1)
    pool = rng.permutation(100 * 100)
    live = pool[:PAIRS]
    rows = [(1, pair, 0) for pair in live]
    for tau in range(1, SNAPSHOTS):
        gone = rng.choice(live, round(share * PAIRS), replace=False)
        come = rng.choice(np.setdiff1d(pool, live), len(gone), replace=False)
        live = np.concatenate([np.setdiff1d(live, gone), come])
        rows += [(-1, pair, tau) for pair in gone] + [(1, pair, tau) for pair in come]
    op, pair, tau = (np.array(column) for column in zip(*rows, strict=True))
    columns = {
        "op": op.astype(np.int8), "src": pair // 100, "dst": pair % 100, "t": tau * SECOND,
        "weight": (rng.random(len(op)) if weights else np.ones(len(op))).astype(np.float32),
    }  # fmt: skip
    schema = event_schema("int")
    arrays = [pa.array(columns[f.name]) if f.name in columns else pa.nulls(len(op), f.type) for f in schema]
    return pa.table(arrays, schema=schema)


def versions(store) -> list[int]:
    return [manifest.format_version for manifest in LaneReader(store, "hash").manifests]


@pytest.mark.parametrize(
    ("share", "weights", "whole"), [(0.3, False, False), (0.7, False, True), (0.7, True, False)]
)
def test_a_file_lists_all_pairs_where_those_are_fewer_than_the_changes(tmp_path, share, weights, whole):
    store = make_store(tmp_path, lane("hash", parts=2), events=replacing(share, weights))
    assert versions(store) == [FORMAT_VERSION, *[WHOLE_PAIRS if whole else FORMAT_VERSION] * (SNAPSHOTS - 1)]
    assert problems_of(store) == []


@pytest.mark.parametrize("parts", [None, [0], [0, 1]])
def test_readers_see_what_they_see_of_changes(tmp_path, parts, monkeypatch):
    events = replacing(0.7)
    listed = make_store(tmp_path / "listed", lane("hash"), events=events)
    monkeypatch.setattr(
        "freshet_graph.stream.store.lane.state.is_smaller_whole", lambda changes, pairs: False
    )
    changed = make_store(tmp_path / "changed", lane("hash"), events=events)
    assert WHOLE_PAIRS in versions(listed) and WHOLE_PAIRS not in versions(changed)
    views = [WindowView(LaneReader(store, "hash"), 3, parts) for store in (listed, changed)]
    for pair in zip(*(LaneReader(store, "hash").manifests for store in (listed, changed)), strict=True):
        for view, manifest in zip(views, pair, strict=True):
            view.advance(manifest)
        for tau in views[0].taus:
            one, other = (view.csr(tau) for view in views)
            for name in ("indptr", "indices", "weights"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        for tau in views[0].taus[1:]:
            first, second = (view.changes(tau) for view in views)
            for name in ("keys", "before", "after"):
                np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
            assert len(first.keys) > 0
    sizes = [sum(m.edges.bytes for m in view.lane.manifests) for view in views]
    assert sizes[0] < sizes[1]


def test_a_release_that_knows_changes_only_refuses_it_and_who_says_so_falsely_is_found(tmp_path, monkeypatch):
    store = make_store(tmp_path, lane("hash", parts=2), events=replacing(0.3))
    path = store / "lanes/hash/commits" / f"{SNAPSHOTS - 1}.json"
    reforged(path, format_version=WHOLE_PAIRS)
    manifest = read_record(path, LaneManifest)
    with pytest.raises(CorruptError, match="has leaving pairs, but should list all pairs"):
        LaneReader(store, "hash").changes(manifest, [0])
    assert any(str(path) in problem for problem in problems_of(store))
    monkeypatch.setattr(LaneManifest, "VERSIONS", (FORMAT_VERSION,))
    with pytest.raises(FormatVersionError, match=r"has format version 2, this release reads version 1\. Use"):
        LaneReader(store, "hash")


def test_what_is_smaller_is_judged_by_rows_and_by_weights_that_differ():
    def changes(gone: int, come: int, *, alike: bool) -> PairRows:
        op = np.repeat(np.array([-1, 1], np.int8), [gone, come])
        weight = np.where(op > 0, 1.0 if alike else np.arange(gone + come), 0).astype(np.float32)
        return PairRows(np.array([0, len(op)]), op, np.arange(len(op)), weight)

    assert is_smaller_whole(changes(51, 51, alike=True), 100)
    assert not is_smaller_whole(changes(50, 50, alike=True), 100)
    assert not is_smaller_whole(changes(60, 60, alike=False), 100)
    assert is_smaller_whole(changes(90, 90, alike=False), 100)
    assert is_smaller_whole(changes(1, 0, alike=True), 0)
    assert not is_smaller_whole(changes(0, 0, alike=True), 0)
