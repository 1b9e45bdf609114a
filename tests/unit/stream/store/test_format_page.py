"""What docs/store-format.md promises: with that page, Arrow and JSON, a store is read without Freshet."""

import ast
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from every_kind import make_every_kind
from lane_stream import lane, make_store
from plain_reader import PlainLane, PlainLog

from freshet_graph.schemas.store import (
    FORMAT_VERSION,
    WHOLE_PAIRS,
    CommitRecord,
    Dropped,
    FileRef,
    HistoryEnd,
    HistoryFile,
    HistoryRecord,
    LaneHeader,
    LaneIndex,
    LaneManifest,
    LogHeader,
    LogIndex,
    PartSummary,
    Position,
    QualityRecord,
    SealedSnapshot,
)
from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.index import groups
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.window.view import WindowView

TESTS = Path(__file__).parents[3]
PAGE = TESTS.parent / "docs" / "store-format.md"
LANES = [
    lane("distdy"),
    lane("sep", edge_life=2, params={"hubs": 0.2}),
    lane("hdrf", edge_life=1, base_every=64),
]


@pytest.fixture(scope="module", params=["whole", "indexed", "dropped"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As it was written; with an index in the place of most commits; without its older snapshots."""
    store = make_store(tmp_path_factory.mktemp("store"), *LANES)
    if request.param != "whole":
        dropped = request.param == "dropped"
        done = compact(store, Keep(snapshots=4) if dropped else Keep(), always=True)
        assert done.dropped == (4 if dropped else 0)
    return store


def test_the_plain_reader_knows_nothing_of_freshet() -> None:
    tree = ast.parse((TESTS / "support" / "plain_reader.py").read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"pyarrow"}


def test_events_ids_and_the_graph_of_every_snapshot_are_read_with_arrow_alone(store: Path) -> None:
    plain, real = PlainLog(store), LogReader(store)
    assert [snapshot["tau"] for snapshot in plain.sealed] == [s.tau for s in real.snapshots]
    assert plain.external_ids() == real.external_ids().to_pylist()
    graph = LiveGraph(node_features=real.header.node_features, segments=real.header.segments)
    base = real.base()
    for tau, events in groups(base, None) if base is not None else ():
        graph.apply(tau, events)
    for snapshot, (tau, edges, vectors) in zip(plain.sealed, plain.graphs(), strict=True):
        assert plain.events(snapshot) == real.events(tau).to_pylist()
        graph.apply(tau, real.events(tau))
        pairs = graph.pairs()
        assert edges == dict(
            zip(zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True), pairs.weight.tolist(), strict=True)
        )
        everyone = np.arange(graph.num_nodes)
        zeros = [0.0] * real.header.node_features
        assert [vectors.get(v, zeros) for v in everyone.tolist()] == graph.features(everyone).tolist()


def test_open_events_and_refused_messages_are_read_with_arrow_alone(tmp_path: Path) -> None:
    store = make_every_kind(tmp_path)
    plain = PlainLog(store)
    with LogWriter.open(store, LogReader(store).header) as log:
        assert plain.open_events() == log.open_tail().to_pylist() != []
        refused = [row for part in log.unpublished_rejects() for row in part.table.to_pylist()]
    assert plain.rejects() == refused != []


@pytest.mark.parametrize("name", [lane.name for lane in LANES])
def test_every_part_of_a_lane_at_every_snapshot_is_read_with_arrow_alone(store: Path, name: str) -> None:
    plain, real = PlainLane(store, name), LaneReader(store, name)
    log = LogReader(store)
    assert [m["sequence"] for m in plain.manifests] == [
        m.sequence for m in real.manifests[real.manifests.first :]
    ]
    assert any(manifest["base"] for manifest in plain.manifests) == (name != "hdrf")
    if name == "hdrf":  # whose pairs live for one snapshot
        assert {manifest["format_version"] for manifest in plain.manifests[-3:]} == {WHOLE_PAIRS}
    views = [WindowView(real, 2, [k]) for k in range(real.header.parts)]
    for manifest, read in zip(real.manifests[real.manifests.first :], plain.manifests, strict=True):
        parts = plain.at(manifest.tau)
        assert parts == plain.at(manifest.tau, use_base=False)
        ids = np.arange(manifest.num_nodes)
        found = real.event_parts(manifest)
        assert plain.event_parts(read) == (None if found is None else found.tolist())
        for k, view in enumerate(views):
            view.advance(manifest)
            assert view.owner(manifest.tau).tolist() == [parts.home.get(v, -1) for v in ids.tolist()]
            csr = view.csr(manifest.tau)
            rows = np.repeat(ids, np.diff(csr.indptr)).tolist()
            entries = set(zip(rows, csr.indices.tolist(), strict=True))
            pairs = {pair for pair in parts.pairs[k] if pair[0] != pair[1]}
            assert entries == pairs | {(v, u) for u, v in pairs}
            zeros = [0.0] * real.header.node_features
            vectors = [parts.vectors[k].get(v, zeros) for v in ids.tolist()]
            assert vectors == view.features(ids, manifest.tau).tolist()
            assert {v for v, placed in parts.placed.items() if k in placed} == parts.vectors[k].keys()
    union = {pair: weight for pairs in parts.pairs for pair, weight in pairs.items()}
    assert len(union) == real.manifests[-1].live_edges
    if real.header.edge_life is None:
        assert union == list(PlainLog(store).graphs())[-1][1]
    assert log.header.checksum == PlainLog(store).header["checksum"]


RECORDS: dict[str, type[Any]] = {
    "log.json": LogHeader,
    "history.json": HistoryRecord,
    "Commit": CommitRecord,
    "Log index": LogIndex,
    "Dropped": Dropped,
    "Lane index": LaneIndex,
    "lane.json": LaneHeader,
    "Manifest": LaneManifest,
    "File": FileRef,
    "Position": Position,
    "Sealed snapshot": SealedSnapshot,
    "History file": HistoryFile,
    "History end": HistoryEnd,
    "Part": PartSummary,
    "Quality": QualityRecord,
}


@pytest.mark.parametrize("title", RECORDS)
def test_the_page_has_every_key_of_every_record_and_no_other(title: str) -> None:
    page = PAGE.read_text()
    section = re.search(
        rf"^\*\*{re.escape(title)}\*\*[^\n]*\n\n(\|.*?)\n\n", page + "\n\n", re.MULTILINE | re.DOTALL
    )
    assert section, f"{title} has no table"
    rows = section[1].splitlines()[2:]
    listed = {key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])}
    everywhere = {"format_version", "checksum"} if "format_version" in RECORDS[title].model_fields else set()
    assert listed == set(RECORDS[title].model_fields) - everywhere


def test_the_page_says_which_version_it_describes() -> None:
    assert PAGE.read_text().startswith(f"# Store format, version {FORMAT_VERSION}\n")


def test_arrow_files_are_plain_files_of_one_schema_a_kind(store: Path) -> None:
    """The columns that the page's tables list are those in the files."""
    page = PAGE.read_text()
    events = pa.ipc.open_file(next((store / "log/snapshots").glob("*/events.arrow"))).schema.names
    table = page[page.index("| `op` | int8 |") :]
    listed = re.findall(
        r"`(\w+)`", " ".join(row.split("|")[1] for row in table[: table.index("\n\n")].splitlines())
    )
    assert listed == events
