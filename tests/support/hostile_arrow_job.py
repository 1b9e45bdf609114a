"""Hostile Arrow files in a process that may take little more memory than it has: who allocates what they ask for dies.

Usage: python hostile_arrow_job.py FOLDER [SAMPLES]. Prints how many files were refused and how many were read.
"""

import json
import resource
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash
from every_kind import LANES, make_every_kind
from forge import refit
from placed import files_of

from freshet_graph.schemas.store import FileRef
from freshet_graph.stream.store.errors import CorruptError, StoreError
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.sealed import tail_schema
from freshet_graph.stream.store.verify.store import verify
from freshet_graph.stream.store.window.view import WindowView

MORE_BYTES = 512 << 20
VALUES = [("<q", 1 << 62), ("<q", 3 << 28), ("<i", 0x7FFFFFFF), ("<i", -1)]
"""What is written over every place where a length, an offset or an index may lie."""


def limit_memory() -> None:
    with Path("/proc/self/statm").open() as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MORE_BYTES, resource.RLIM_INFINITY))


def written(path: Path, content: bytes) -> FileRef:
    path.write_bytes(content)
    return FileRef(path=path.name, bytes=len(content), checksum=xxhash.xxh64_hexdigest(content))


def arrow_file(table: pa.Table, compression: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def open_events() -> pa.Table:
    """A column of each type that the format has: numbers, texts, lists, a dictionary, nulls."""
    rows = [
        {
            "op": 1, "src": f"a{i}", "dst": "b", "t": i, "weight": 1.0, "features": [1.0, 2.0] if i % 2 else None,
            "feature_offset": None, "label": i, "event_id": None, "topic": "edges", "partition": 0, "offset": i, "tau": 0,
        }
        for i in range(20)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=tail_schema("string")).select(
        ["src", "t", "features", "label", "topic"]
    )


def overwritten(content: bytes) -> Iterator[bytes]:
    for at in range(0, len(content) - 8, 8):
        for form, value in VALUES:
            yield content[:at] + struct.pack(form, value) + content[at + struct.calcsize(form) :]


def read_alone(folder: Path) -> dict[str, int]:
    """One file, every number in it replaced: an error that names it, or a table that is whole."""
    table, found = open_events(), {"refused": 0, "read": 0}
    for compression in (None, "zstd"):
        for content in overwritten(arrow_file(table, compression)):
            try:
                read_table(folder, written(folder / "x.arrow", content), schema=table.schema).validate(
                    full=True
                )
                found["read"] += 1
            except CorruptError as error:
                assert "x.arrow" in str(error)
                found["refused"] += 1
    return found


def read_bombs(folder: Path) -> dict[str, int]:
    """Few bytes that stand for gigabytes."""
    found = {"bombs refused": 0}
    zeros = arrow_file(pa.table({"x": pa.array(np.zeros(1 << 23))}), "zstd")
    nulls = arrow_file(pa.table({"x": pa.Array.from_buffers(pa.null(), (1 << 31) - 1, [None])}), None)
    for bomb, words in ((zeros, "ask for"), (nulls, "another schema")):
        try:
            read_table(folder, written(folder / "x.arrow", bomb), schema=pa.schema([("x", pa.float64())]))
        except CorruptError as error:
            assert words in str(error)
            found["bombs refused"] += 1
    return found


def read_store(store: Path, samples: int) -> dict[str, int]:
    """Files of a whole store, records made to fit: verify lists, readers raise what they say, writers start or say why not."""
    random = np.random.default_rng(0)
    every = [store / name for name in files_of(store)]
    files = [path for path in every if path.suffix == ".arrow"]
    contents = {path: path.read_bytes() for path in every}
    found = {"store refused": 0, "store read": 0}
    for _ in range(samples):
        path = files[random.integers(len(files))]
        form, value = VALUES[random.integers(len(VALUES))]
        content = bytearray(contents[path])
        at = int(random.integers((len(content) - 8) // 4)) * 4
        content[at : at + struct.calcsize(form)] = struct.pack(form, value)
        path.write_bytes(content)
        refit(store)
        whole = verify(store).ok
        try:
            for name in LANES:
                lane = LaneReader(store, name)
                for manifest in lane.manifests:
                    lane.log.events(manifest.tau)
                    WindowView(lane, 1).advance(manifest)
                with LaneWriter(store, LANES[name]) as writer:
                    writer.catch_up()
            found["store read" if whole else "store refused"] += 1
        except StoreError:
            assert not whole, f"byte {at} of {path}: verify says nothing"
            found["store refused"] += 1
        for other, before in contents.items():
            other.parent.mkdir(exist_ok=True, parents=True)
            other.write_bytes(before)
    return found


def main(folder: Path, samples: int = 15) -> None:
    store = make_every_kind(folder / "store", *LANES)
    compacted = make_every_kind(folder / "compacted", *LANES, snapshots=3, compacted=True)
    assert verify(store).ok and verify(compacted).ok  # and all kernels are loaded
    limit_memory()
    found = read_alone(folder) | read_bombs(folder)
    for each in (store, compacted):
        for what, count in read_store(each, samples).items():
            found[what] = found.get(what, 0) + count
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
