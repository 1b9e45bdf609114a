"""What trainers exported, for other programs: the newest embedding of every node, and the scores of all events."""

import numpy as np
import pyarrow as pa

from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.errors import RetainedError
from freshet_graph.stream.store.exports import ExportReader
from freshet_graph.stream.store.places.place import Place


def load_embeddings(store: str | Place, name: str) -> pa.Table:
    """Combine exports: for each node the newest embedding of the newest model.

    Args:
        store: Folder or address of the store.
        name: Of the exports: ``exports.name``, by default the lane's name.

    Returns:
        The columns of an export's embeddings (docs/exports.md), each node once, newest exports first, without nodes whose
        exports are no longer kept.

    Raises:
        Failure: No embeddings are exported under this name.
        StoreError: A file is damaged.
    """
    reader = ExportReader(store, name)
    tables: list[pa.Table] = []
    seen = np.zeros(0, np.bool_)
    model: str | None = None
    for commit in reversed(reader.commits):
        try:
            table = reader.table(commit, "embeddings")
        except RetainedError:
            continue  # just removed, like those before it
        if table is None or model not in (None, commit.model):
            continue
        model = commit.model
        nodes = table["node"].to_numpy()
        seen = np.concatenate([seen, np.zeros(max(0, int(nodes.max(initial=-1)) + 1 - len(seen)), np.bool_)])
        fresh = np.flatnonzero(~seen[nodes])
        seen[nodes] = True
        width = table.schema.field("embedding").type
        if tables and tables[0].schema.field("embedding").type != width:
            continue  # of the same model with other parameters
        tables.append(table.take(pa.array(fresh)))
    if not tables:
        raise Failure(
            f"{reader.root} has no embeddings. Set exports: {{embeddings: true}} in the trainer's configuration, and name "
            "the exports by its exports.name or lane"
        )
    return pa.concat_tables([table.unify_dictionaries() for table in tables])


def load_scores(store: str | Place, name: str) -> pa.Table:
    """Combine exports: the scores of all events whose exports are kept.

    Args:
        store: Folder or address of the store.
        name: Of the exports: ``exports.name``, by default the lane's name.

    Returns:
        The snapshot as ``tau``, int64, and the columns of an export's scores (docs/exports.md), oldest snapshots first. A
        snapshot that was exported again has its newest scores only.

    Raises:
        Failure: No scores are exported under this name.
        StoreError: A file is damaged.
    """
    reader = ExportReader(store, name)
    by_tau: dict[int, pa.Table] = {}
    for commit in reversed(reader.commits):
        if commit.tau in by_tau:
            continue
        try:
            table = reader.table(commit, "scores")
        except RetainedError:
            continue  # just removed, like those before it
        if table is not None:
            tau = pa.array(np.full(len(table), commit.tau))
            by_tau[commit.tau] = table.add_column(0, "tau", tau)
    if not by_tau:
        raise Failure(
            f"{reader.root} has no scores. Set exports: {{scores: true}} in the trainer's configuration, and name the exports "
            "by its exports.name or lane"
        )
    return pa.concat_tables([by_tau[tau] for tau in sorted(by_tau)]).unify_dictionaries()
