"""Scores on arrival of a snapshot model: the embeddings after the last sealed snapshot, and encounters of all events so far."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from freshet_graph.schemas.events import Op
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.arrays.kinds import Float32, Int64
from freshet_graph.stream.snapshots.dictionary import new_dictionary
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.event_columns import event_columns
from freshet_graph.trainer.arrival.memory import Scored, arrival_times, session_of
from freshet_graph.trainer.data.examples import Queries
from freshet_graph.trainer.data.history import History, Inserts
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.ranks import Ranks


class SnapshotMemory:
    """A snapshot model with one checkpoint's weights, the embeddings after a snapshot, and the encounters of all that arrived.

    The snapshot is the newest that the lane has of those whose events, and those of all snapshots before, came with earlier
    commits. A node that is not in it has the embedding of the next new node.

    Args:
        config: See ``ArrivalMemory``, and so for the other arguments.
        lane: Also read here, for later snapshots.
        ranks: This process alone.
        state: Of a checkpoint.
        learned: Whether to begin with the checkpoint's snapshot; otherwise with the first of the log.
        vectors: Whether embeddings are wanted beside scores.

    Attributes:
        model: With the checkpoint's weights.
        labels: See ``ArrivalMemory``.

    Raises:
        Failure: The model has another task.
    """

    def __init__(
        self,
        config: TrainerConfig,
        lane: LaneReader,
        ranks: Ranks,
        state: Mapping[str, Any],
        *,
        learned: bool = True,
        vectors: bool = False,
    ) -> None:
        self._session, self.labels = session_of(config, lane, ranks, state, learned=learned)
        self.model = self._session.model
        self._lane, self._vectors = lane, vectors
        self._ids = new_dictionary(lane.log.header.ids)
        self._dense: Int64 = np.empty(0, np.int64)  # of the snapshot, by the number of an id; −1: not in it
        self._known = 0  # nodes of the snapshot
        self._history = History("event")
        self._next = lane.manifests.first  # the snapshot that may become the last sealed one
        self._embedded: Tensor | None = None  # the embeddings after it
        self.snapshot: int | None = None
        """Number of the last sealed snapshot; None: there is none yet."""
        if learned:
            self._session.restore(state)
            self._history.restore({name: np.asarray(column) for name, column in state["history"].items()})
            self._advance(int(state["sequence"]))
        else:
            self.model.load_state_dict(state["model"])
        self._newest_us = int(self._history.last_seen_us.max(initial=-1))
        self.model.eval()

    def before(self, commit: int, until: int | None = None) -> None:
        """Go to the last sealed snapshot before a commit.

        Args:
            commit: Its number; they ascend between calls.
            until: The last snapshot to go to, as a message names it; None: the newest that the lane has.
        """
        while (
            self._has_next()
            and (until is None or self._next <= until)
            and self._newest_commit(self._next) < commit
        ):
            self._advance(self._next)

    def take(self, events: pa.Table, *, scored: bool = True) -> Scored | None:
        """Take in the events of the commit given to ``before``; see ``ArrivalMemory.take``."""
        rows = np.flatnonzero(events["op"].to_numpy() == int(Op.INSERT))
        inserts = events.take(pa.array(rows))
        time_us = arrival_times(inserts, self._newest_us, self._lane.log.header.interval_us)
        self._newest_us = int(time_us[-1]) if len(rows) else self._newest_us
        src, dst = self._ids.encode(inserts["src"], inserts["dst"])
        happened = Inserts(src, dst, time_us, np.zeros(len(rows), np.bool_))
        queried = np.arange(len(rows) if scored else 0)
        seen = self._history.replay(happened, self._ids.size, queried, src[queried], dst[queried])
        result = self._scores(rows, src, dst, time_us, seen) if scored else None
        if self.labels is not None:
            renamed = event_columns(
                inserts.append_column("src_node", pa.array(src)).append_column("dst_node", pa.array(dst)), 0, 1,
                self._lane.log.header.edge_features,
            )  # fmt: skip
            ids = inserts["event_id"].combine_chunks()
            known = None if result is None else result.seen
            probability = self.labels.take(ids, renamed, time_us, self._ids.size, known)
            result = result and replace(result, label_probability=probability)
        return result if self._vectors or result is None else replace(result, vectors=None)

    def _scores(self, rows: Int64, src: Int64, dst: Int64, time_us: Int64, seen: Float32) -> Scored:
        recent = np.full(len(rows), np.nan, np.float32)
        if self.snapshot is None or not len(rows):
            unknown = np.full((len(rows), 2 * self.model.width), np.nan, np.float32)
            return Scored(rows, np.full(len(rows), np.nan, np.float32), seen, recent, unknown, self.snapshot)
        z_src, z_dst = self._rows(src), self._rows(dst)
        queries = Queries(np.arange(len(rows)), src, dst, seen, time_us, time_us)
        with torch.no_grad():
            score = queries.read(self.model.decoder, [z_src, z_dst]).float().cpu().numpy()
            vectors = torch.cat([z_src, z_dst], dim=1).float().cpu().numpy()
        return Scored(rows, score, seen, recent, vectors, self.snapshot)

    def _rows(self, numbers: Int64) -> Tensor:
        """Embeddings of nodes by the numbers of their ids."""
        if self._embedded is None:  # of all nodes and a new one, once per snapshot
            self._embedded = self._session.strategy.embeddings(np.arange(self._known + 1))
        known = numbers < len(self._dense)
        dense = (
            np.where(known, self._dense[np.where(known, numbers, 0)], -1)
            if len(self._dense)
            else numbers * 0 - 1
        )
        return self._embedded[to_device(np.where(dense < 0, self._known, dense), self._embedded.device)]

    def _has_next(self) -> bool:
        if self._next >= len(self._lane.manifests):
            self._lane.refresh()
        self._next = max(self._next, self._lane.manifests.first)  # retention drops some
        return self._next < len(self._lane.manifests)

    def _newest_commit(self, number: int) -> int:
        return int(self._lane.log.arrivals(self._lane.manifests[number].tau).max(initial=-1))

    def _advance(self, number: int) -> None:
        manifest = self._lane.manifests[number]
        self._session.advance(manifest)
        ids = self._lane.log.external_ids()[self._known : manifest.num_nodes]
        numbers, _ = self._ids.encode(ids, ids)
        more = np.full(self._ids.size - len(self._dense), -1, np.int64)
        self._dense = np.concatenate([self._dense, more])
        self._dense[numbers] = np.arange(self._known, manifest.num_nodes)
        self._known, self._next, self.snapshot, self._embedded = manifest.num_nodes, number + 1, number, None
