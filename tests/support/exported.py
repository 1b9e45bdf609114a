"""Exports as a trainer leaves them, written by hand."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.exports import ExportCommit, ExportKind
from freshet_graph.schemas.store import FileRef
from freshet_graph.stream.store.exports import ExportReader, ExportWriter

WIDTH = 4


def versions(count: int, version: str) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([version]))


def embeddings(tau: int, nodes: int) -> pa.Table:
    vectors = np.arange(nodes * WIDTH, dtype=np.float32) + tau
    return pa.table(
        {
            "id": pa.array([f"n{node}" for node in range(nodes)]),
            "node": np.arange(nodes),
            "t": pa.array(np.arange(nodes) * 500_000 + tau * 10_000_000).cast(pa.timestamp("us", "UTC")),
            "model_version": versions(nodes, f"tgn-{tau}"),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors), WIDTH),
        }
    )


def scores(tau: int, events: int) -> pa.Table:
    return pa.table(
        {
            "row": np.arange(events) + 1,
            "event_id": pa.array([f"e{row}" if row % 2 else None for row in range(events)]),
            "src": pa.array(["a"] * events),
            "dst": pa.array(["b"] * events),
            "t": pa.array(np.arange(events) + tau * 10_000_000).cast(pa.timestamp("us", "UTC")),
            "model_version": versions(events, f"tgn-{tau - 1}"),
            "score": pa.array(np.where(np.arange(events) == 0, np.nan, 1.5).astype(np.float32)),
            "negative_score": pa.array(np.full(events, -0.5, np.float32)),
        }
    )


def add(
    writer: ExportWriter, tables: Mapping[ExportKind, pa.Table] | None = None, **more: object
) -> ExportCommit:
    """One more export of these tables, two ids by default; ``more`` of its record."""
    tables = tables or {"embeddings": pa.table({"id": [1, 2]})}

    def file(kind: ExportKind, table: pa.Table) -> FileRef:
        def write(sink: object) -> None:
            with pa.ipc.new_file(sink, table.schema) as into:
                into.write_table(table)

        return export.add(kind, write)

    with writer.begin() as export:
        number = export.number
        record: dict[str, object] = {
            "number": number, "lane": "lane", "tau": number, "sequence": number, "after": number - 1, "model": "m",
            "model_version": "v", "scores_version": "v", "time_us": 0,
        }  # fmt: skip
        for kind, table in tables.items():
            record |= {kind: file(kind, table), f"num_{kind}": len(table)}
        writer.commit(export, commit := ExportCommit.model_validate(record | more))
    return commit


def write_export(store: str | Path, name: str, *, rows: int = 3) -> ExportCommit:
    """One more export under a name, with all columns of both tables."""
    writer = ExportWriter(store, name)
    tau = len(writer.reader.commits)
    add(
        writer,
        {"embeddings": embeddings(tau, rows), "scores": scores(tau, rows)},
        lane=name,
        model="tgn",
        model_version=f"tgn-{tau}",
        scores_version=f"tgn-{tau - 1}",
        time_us=tau * 10_000_000,
    )
    return ExportReader(store, name).commits[-1]
