"""Embeddings of the nodes a snapshot touched, as Arrow files under ``exports/`` in the store."""

import numpy as np
import pyarrow as pa

from schemas.store import LaneManifest
from schemas.trainer_config import TrainerConfig
from stream.store.files.data import write_table
from stream.store.lane.reader import LaneReader
from stream.store.places.place import Place, place_of
from stream.store.window.view import WindowView
from trainer.ranks import Ranks
from trainer.strategies.interface import Strategy


def export_embeddings(
    strategy: Strategy,
    window: WindowView,
    lane: LaneReader,
    manifest: LaneManifest,
    ranks: Ranks,
    config: TrainerConfig,
) -> Place:
    """Write the embeddings of the nodes that have an edge event in the newest snapshot; a collective.

    Each rank writes the nodes it owns to ``exports/embeddings/<lane>/<τ>-<rank>.arrow``: columns ``node`` (dense
    id), ``id`` (the producer's), ``embedding`` (float32, fixed width); the schema's metadata names model, τ,
    sequence and rank. A file appears whole; a repeated export replaces it.

    Returns:
        The file.
    """
    events = window.events(manifest.tau)
    touched = np.unique(np.concatenate([events.src, events.dst]))
    own = touched[strategy.owned(window.num_nodes)[touched]]
    rows = strategy.embeddings(own).cpu().numpy().astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    table = pa.table(
        {"node": pa.array(own), "id": lane.log.external_ids().take(pa.array(own)), "embedding": vectors}
    ).replace_schema_metadata(
        {
            "model": config.model,
            "tau": str(manifest.tau),
            "sequence": str(manifest.sequence),
            "rank": str(ranks.rank),
        }
    )
    root = place_of(config.store or ".")
    relative = f"exports/embeddings/{lane.header.lane}/{manifest.tau}-{ranks.rank}.arrow"
    write_table(root, relative, table)
    return root / relative
