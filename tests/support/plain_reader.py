"""A store read by the rules of ``docs/store-format.md`` with JSON and Arrow alone: nothing of Freshet is imported.

Written for reading, not for speed: what somebody would write first in any language.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

Pair = tuple[int, int]


def record(path: Path) -> dict[str, Any]:
    """One JSON record in canonical form."""
    raw = path.read_bytes()
    content: dict[str, Any] = json.loads(raw)
    two = (
        path.parent.parent.parent.name == "lanes" or path.name == "log.json" or path.parent.name == "commits"
    )
    assert content["format_version"] in ((1, 2) if two else (1,))
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    assert raw == text.encode() + b"\n"
    return content


def arrow(root: Path, reference: dict[str, Any]) -> pa.ipc.RecordBatchFileReader:
    """The Arrow file that a record names."""
    raw = (root / reference["path"]).read_bytes()
    assert len(raw) == reference["bytes"]
    return pa.ipc.open_file(pa.py_buffer(raw))


def bundle(root: Path, reference: dict[str, Any]) -> dict[str, pa.ipc.RecordBatchFileReader]:
    """The Arrow files inside a bundle, by name."""
    rows = arrow(root, reference).read_all().to_pylist()
    return {row["name"]: pa.ipc.open_file(pa.py_buffer(row["content"])) for row in rows}


def newest_index(root: Path) -> dict[str, Any] | None:
    """The index with the largest number of a log or lane."""
    numbers = [int(path.stem) for path in (root / "index").glob("*.json")]
    return record(root / "index" / f"{max(numbers)}.json") if numbers else None


class PlainLog:
    """``<store>/log``."""

    def __init__(self, store: Path) -> None:
        self.root = store / "log"
        self.header = record(self.root / "log.json")
        self.commits: list[dict[str, Any]] = []
        self.sealed: list[dict[str, Any]] = []
        self.index = newest_index(self.root)
        n, previous = 0, self.header.get("begun_as", self.header["checksum"])
        if self.index is not None:
            n = self.index["n"]
            commit = self._commit(n)
            assert commit["checksum"] == self.index["commit"]
            self.commits.append(commit)
            n, previous = n + 1, commit["checksum"]
            self.sealed = [
                _indexed(row) for row in arrow(self.root, self.index["snapshots"]).read_all().to_pylist()
            ]
        while self._path(n).exists():
            commit = self._commit(n)
            assert (commit["n"], commit["previous"]) == (n, previous)
            self.commits.append(commit)
            self.sealed.extend(commit["sealed"])
            n, previous = n + 1, commit["checksum"]

    def _path(self, n: int) -> Path:
        return self.root / "commits" / f"{n:016d}.json"

    def _commit(self, n: int) -> dict[str, Any]:
        return record(self._path(n))

    def events(self, snapshot: dict[str, Any]) -> list[dict[str, Any]]:
        """A sealed snapshot's events in order."""
        return arrow(self.root, snapshot["events"]).read_all().to_pylist()

    def external_ids(self) -> list[Any]:
        """External ids by dense id."""
        ids: list[Any] = []
        covered = 0
        if self.index is not None:
            for file in self.index["ids"]:
                ids.extend(arrow(self.root, file).read_all()["id"].to_pylist())
            covered = self.index["end"] - self.index["first"]
        for snapshot in self.sealed[covered:]:
            for row in arrow(self.root, snapshot["nodes"]).read_all().to_pylist():
                assert row["node"] == len(ids)
                ids.append(row["id"])
        return ids

    def open_events(self) -> list[dict[str, Any]]:
        """Accepted events whose snapshots are open, in order of arrival."""
        last = self.commits[-1]
        rows = [row for file in last["tail"] for row in arrow(self.root, file).read_all().to_pylist()]
        through = last["sealed_through"]
        return [row for row in rows if through is None or row["tau"] > through]

    def rejects(self) -> list[dict[str, Any]]:
        """All refused messages."""
        folded = [] if self.index is None else [self._commit(n) for n in self.index["with_rejects"]]
        commits = {commit["n"]: commit for commit in [*folded, *self.commits]}
        files = [commit["rejects"] for commit in commits.values() if commit["rejects"] is not None]
        return [row for file in files for row in arrow(self.root, file).read_all().to_pylist()]

    def graphs(self) -> Iterator[tuple[int, dict[Pair, float], dict[int, list[float]]]]:
        """τ, live edges (dense ids) with weights, and feature vectors, after every snapshot, from the events alone."""
        edges: dict[Pair, float] = {}
        vectors: dict[int, list[float]] = {}
        width = self.header["node_features"]

        def apply(event: dict[str, Any]) -> None:
            pair = event["src_node"], event["dst_node"]
            if event["op"] == 1:
                edges[pair] = event["weight"]
            elif event["op"] == -1:
                edges.pop(pair, None)
            else:
                vector = vectors.setdefault(pair[0], [0.0] * width)
                if event["features"] is not None:
                    start = event["feature_offset"] or 0
                    vector[start : start + len(event["features"])] = event["features"]

        if self.index is not None and self.index["base"] is not None:
            for event in arrow(self.root, self.index["base"]).read_all().to_pylist():
                apply(event)
        for snapshot in self.sealed:
            for event in self.events(snapshot):
                apply(event)
            yield snapshot["tau"], dict(edges), {v: list(x) for v, x in vectors.items()}


def _indexed(row: dict[str, Any]) -> dict[str, Any]:
    """A row of an index as a commit's ``sealed`` has it."""
    files = {
        what: {
            "path": f"snapshots/{row['tau']}/{what}.arrow",
            "bytes": row[f"{what}_bytes"],
            "checksum": row[f"{what}_checksum"],
        }
        for what in ("events", "nodes")
    }
    return {**row, **files}


@dataclass
class PlainParts:
    """What the parts of a lane hold.

    Attributes:
        home: Part of each placed node.
        placed: Parts that each node is in.
        pairs: One dict of (src, dst) → weight a record batch.
        vectors: One dict of node → vector a part.
    """

    home: dict[int, int]
    placed: dict[int, set[int]]
    pairs: list[dict[Pair, float]]
    vectors: list[dict[int, list[float]]]


@dataclass
class PlainLane:
    """``<store>/lanes/<lane>``."""

    store: Path
    name: str
    header: dict[str, Any] = field(init=False)
    manifests: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.root = self.store / "lanes" / self.name
        self.header = record(self.root / "lane.json")
        self.manifests = []
        self.index = newest_index(self.root)
        log = PlainLog(self.store)
        first = 0 if log.index is None else log.index["first"]  # number of log.sealed[0]
        begin = first if self.index is None else self.index["first"]
        previous = None if begin else ""
        for number, snapshot in enumerate(log.sealed, first):
            path = self.root / "commits" / f"{snapshot['tau']}.json"
            if number < begin or not path.exists():
                continue
            manifest = record(path)
            assert manifest["sequence"] == number
            assert previous is None or manifest["previous"] == previous
            assert manifest["lane_checksum"] == self.header["checksum"]
            assert manifest["log_events_checksum"] == snapshot["events"]["checksum"]
            previous = manifest["checksum"]
            self.manifests.append(manifest)

    def at(self, tau: int, *, use_base: bool = True) -> PlainParts:
        """What every part holds at snapshot τ."""
        through = [manifest for manifest in self.manifests if manifest["tau"] <= tau]
        bases = {m["sequence"]: m["base"] for m in through if m["base"] is not None} if use_base else {}
        if self.index is not None and self.index["base"] is not None:
            bases.setdefault(self.index["first"], self.index["base"])  # there is nothing older to begin with
        batches = self.header["parts"] + (self.header["kind"] == "edge")
        parts = PlainParts({}, {}, [{} for _ in range(batches)], [{} for _ in range(self.header["parts"])])
        begin = -1
        if bases:
            begin = max(bases)
            self._apply(parts, bundle(self.root, bases[begin]))
        for manifest in through:
            if manifest["sequence"] <= begin:
                continue
            names = ("assignment", "edges", "segments")
            if manifest["format_version"] == 2:  # its edges are all there are
                parts.pairs = [{} for _ in range(batches)]
            self._apply(parts, {name: arrow(self.root, manifest[name]) for name in names})
        return parts

    def event_parts(self, manifest: dict[str, Any]) -> list[int] | None:
        """Edge lanes: the part of every edge event of a snapshot."""
        if manifest["event_parts"] is None:
            return None
        parts: list[int] = arrow(self.root, manifest["event_parts"]).read_all()["part"].to_pylist()
        return parts

    def _apply(self, parts: PlainParts, tables: dict[str, pa.ipc.RecordBatchFileReader]) -> None:
        edge_lane = self.header["kind"] == "edge"
        for row in tables["assignment"].get_batch(0).to_pylist():
            node, part, why = row["node"], row["part"], row["why"]
            before = parts.placed.get(node, set())
            if why == 0:  # gone
                del parts.home[node]
                now: set[int] = set()
            elif why == 4:  # demoted
                now = before - {part}
            elif why == 3 or edge_lane:  # replicated; in an edge lane a former home stays until demoted
                now = before | {part}
            else:
                now = {part}
            if why in (1, 2):  # new, moved
                parts.home[node] = part
            for left in before - now:
                del parts.vectors[left][node]
            for entered in now - before:
                parts.vectors[entered][node] = [0.0] * self.header["node_features"]
            parts.placed[node] = now
            if not now:
                del parts.placed[node]
        for k, pairs in enumerate(parts.pairs):
            for row in tables["edges"].get_batch(k).to_pylist():
                pair = row["src"], row["dst"]
                if row["op"] == -1:
                    del pairs[pair]
                else:
                    assert (pair in pairs) == (row["op"] == 0)
                    pairs[pair] = row["weight"]
        width, segments = self.header["node_features"], self.header["segments"]
        for k, vectors in enumerate(parts.vectors):
            for row in tables["segments"].get_batch(k).to_pylist():
                start, end = (s * width // segments for s in (row["segment"], row["segment"] + 1))
                vectors[row["node"]][start:end] = row["values"][: end - start]
