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
    assert content["format_version"] == 1
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


class PlainLog:
    """``<store>/log``."""

    def __init__(self, store: Path) -> None:
        self.root = store / "log"
        self.header = record(self.root / "log.json")
        self.commits: list[dict[str, Any]] = []
        previous = self.header["checksum"]
        while (path := self.root / "commits" / f"{len(self.commits):016d}.json").exists():
            commit = record(path)
            assert (commit["n"], commit["previous"]) == (len(self.commits), previous)
            previous = commit["checksum"]
            self.commits.append(commit)
        self.sealed = [snapshot for commit in self.commits for snapshot in commit["sealed"]]

    def events(self, snapshot: dict[str, Any]) -> list[dict[str, Any]]:
        """A sealed snapshot's events in order."""
        return arrow(self.root, snapshot["events"]).read_all().to_pylist()

    def external_ids(self) -> list[Any]:
        """External ids by dense id."""
        ids: list[Any] = []
        for snapshot in self.sealed:
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
        files = [commit["rejects"] for commit in self.commits if commit["rejects"] is not None]
        return [row for file in files for row in arrow(self.root, file).read_all().to_pylist()]

    def graphs(self) -> Iterator[tuple[int, dict[Pair, float], dict[int, list[float]]]]:
        """τ, live edges (dense ids) with weights, and feature vectors, after every snapshot, from the events alone."""
        edges: dict[Pair, float] = {}
        vectors: dict[int, list[float]] = {}
        width = self.header["node_features"]
        for snapshot in self.sealed:
            for event in self.events(snapshot):
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
            yield snapshot["tau"], dict(edges), {v: list(x) for v, x in vectors.items()}


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
        previous = ""
        for snapshot in PlainLog(self.store).sealed:
            path = self.root / "commits" / f"{snapshot['tau']}.json"
            if not path.exists():
                break
            manifest = record(path)
            assert manifest["sequence"] == len(self.manifests)
            assert manifest["previous"] == previous
            assert manifest["lane_checksum"] == self.header["checksum"]
            assert manifest["log_events_checksum"] == snapshot["events"]["checksum"]
            previous = manifest["checksum"]
            self.manifests.append(manifest)

    def at(self, tau: int, *, use_base: bool = True) -> PlainParts:
        """What every part holds at snapshot τ."""
        through = [manifest for manifest in self.manifests if manifest["tau"] <= tau]
        with_base = [manifest for manifest in through if manifest["base"] is not None] if use_base else []
        batches = self.header["parts"] + (self.header["kind"] == "edge")
        parts = PlainParts({}, {}, [{} for _ in range(batches)], [{} for _ in range(self.header["parts"])])
        first = 0
        if with_base:
            self._apply(parts, bundle(self.root, with_base[-1]["base"]))
            first = with_base[-1]["sequence"] + 1
        for manifest in through[first:]:
            names = ("assignment", "edges", "segments")
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
