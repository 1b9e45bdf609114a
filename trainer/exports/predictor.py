"""A trained model for questions: embeddings of nodes, and the likeliest next encounters of a node."""

import math
import threading
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.arrays.kinds import Float32, Int64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.as_of import AsOf, Moment
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.data.examples import Queries
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.exports.exporter import Touched, embedded, version_of
from freshet_graph.trainer.session.checkpoint import (
    chosen,
    content_of,
    lane_of_checkpoint,
    newest_checkpoint,
    oldest_checkpoint,
)
from freshet_graph.trainer.session.session import Session, join_ranks
from freshet_graph.trainer.strategies.cost_model import AUTO
from freshet_graph.trainer.validation import Configured, as_config, require_trainable

_FAR_US = 2.0**62
"""Larger times are rejected, so that the difference of two fits int64."""


class Predictor:
    """The newest checkpoint of a configuration, read only: a trainer may keep running.

    It knows the stream up to the checkpoint's snapshot, or up to a moment of the past. Make a new predictor to know more. Any
    number of threads may ask; they are answered one after the other.

    Attributes:
        checkpoint: The file.
        tau: The last snapshot that it knows.
        sequence: The snapshot's number in the lane.
        version: Of the weights, as exports have it.
    """

    def __init__(self, config: Configured, as_of: Moment | None = None) -> None:
        """Load a checkpoint, of any number of ranks, into this process alone.

        Args:
            config: The trainer's configuration, its file, or a dict of its keys.
            as_of: The last snapshot to know: a snapshot (18262), time (a datetime, or "2024-05-01T12:00"; UTC without a zone)
                or second ("@1714564800"). The newest checkpoint up to it is taken, and passes over the later snapshots up to
                it without learning. So no weight depends on a later event. None: the newest checkpoint's snapshot.

        Raises:
            Failure: There is no store or checkpoint, they do not go together, or the checkpoint has other content.
            StoreError: The store cannot be read, or not so far back.
        """
        config, moment = as_config(config, require_trainable), None if as_of is None else AsOf.of(as_of)
        if config.store is None:
            raise Failure("key store is missing. A checkpoint is read with the store that it was trained on")
        name = lane_of_checkpoint(config) if config.lane == AUTO else config.lane
        if name is None:
            raise Failure(f"{config.checkpoint} has no checkpoint. Train with freshet-trainer run first")
        lane = LaneReader(config.store, name)
        ranks = join_ranks(config)
        require_trainable(config)  # says more than a checkpoint of another configuration does
        last = None if moment is None else min(lane.log.count(moment), len(lane.manifests)) - 1
        newest = newest_checkpoint(config, lane, last)
        oldest = oldest_checkpoint(config)
        if newest is None and oldest is not None and lane.manifests.first <= oldest < len(lane.manifests):
            tau = lane.manifests[oldest].tau
            ends = AsOf(t_us=(tau + 1) * lane.header.interval_us)
            raise Failure(
                f"{config.checkpoint} has no checkpoint as old as {moment}, the oldest is after snapshot {tau}, which ends at "
                f"{ends}. Ask about that moment or a later one"
            )
        if newest is None:
            raise Failure(f"{config.checkpoint} has no checkpoint. Train with freshet-trainer run first")
        self.checkpoint, state = newest
        with content_of(self.checkpoint):
            never_learns = chosen(config, state).model_copy(update={"compile": False})
            self._session = Session(never_learns, lane, ranks)
            self._session.restore(state)
        self._session.model.eval()
        self._asking = threading.Lock()  # an answer passes through states of model, names and history
        self._lane, self._ranks = lane, ranks
        self.sequence = int(state["sequence"]) if last is None else last
        for number in range(int(state["sequence"]) + 1, self.sequence + 1):
            self._session.pass_over(lane.manifests[number])
        manifest = lane.manifests[self.sequence]
        self.tau = manifest.tau
        self.version = version_of(self._session.model)
        self._ids = lane.log.external_ids()[: manifest.num_nodes].combine_chunks()
        self._after_us = lane.log.snapshots[self.sequence].max_t_us + 1
        if self._session.strategy.memory is None:  # others have the stream in it
            self._session.advance(manifest)

    def embeddings(self, nodes: Iterable[Any] | None = None) -> pa.Table:
        """Embeddings after the checkpoint's snapshot, as exports have them.

        Args:
            nodes: The producer's ids; None: all that the model remembers.

        Returns:
            Columns ``id``, ``node``, ``model_version``, ``embedding``, in the order of ``nodes``.

        Raises:
            Failure: A node is unknown, or no id of this store.
        """
        ids = None if nodes is None else self._as_ids(nodes)
        with self._asking:
            dense = np.arange(len(self._ids)) if ids is None else self._known(ids, "Leave it out")[0]
            queries = Touched(dense, np.zeros(len(dense), np.int64))
            batches = embedded(
                self._session.strategy, queries, self._session.names, self._lane, self._ranks, self.version
            )
            return pa.Table.from_batches(list(batches)).drop_columns(["t"])

    def rank(
        self,
        node: Any,
        candidates: Iterable[Any] | None = None,
        top: int = 10,
        *,
        prefix: str | None = None,
        t: float | None = None,
    ) -> list[tuple[Any, float]]:
        """The likeliest next encounters of a node among candidates, best first.

        Args:
            node: The source, by the producer's id.
            candidates: Destinations, by the producer's ids; or give ``prefix``.
            top: Largest number of results.
            prefix: Take all nodes that the model remembers and whose id begins with this, such as ``merchant:``.
            t: Time of the encounter, in seconds, not before the newest event that the model has seen; None: right after it.

        Returns:
            Pairs of a candidate and its score, the logit: log-odds against a random destination.

        Raises:
            Failure: The node or a candidate is unknown, or ``t``, ``top`` or ``prefix`` is invalid.
        """
        if (candidates is None) == (prefix is None):
            raise Failure(
                "rank takes either candidates, a list of ids, or prefix, the beginning of their ids"
            )
        if self._session.task.history is None:
            raise Failure(
                f"rank predicts encounters, but the model was trained for {self._session.task.name}"
            )
        if not isinstance(top, int | np.integer) or top < 1:
            raise Failure(f"top must be a whole number of at least 1, found {top}")
        time_us, newest_us = self._after_us if t is None else _microseconds(t), self._after_us - 1
        if time_us < newest_us:
            raise Failure(
                f"t is {AsOf(t_us=time_us)}, before {AsOf(t_us=newest_us)}, the newest event of the checkpoint's snapshot. "
                "Leave t out, or give a later time"
            )
        time_us = max(self._after_us, time_us)
        source = self._as_ids([node])
        ids = None if candidates is None else self._as_ids(candidates)
        with self._asking:
            chosen = self._beginning_with(prefix) if ids is None else ids
            text = pa.types.is_string(self._ids.type)
            dst = self._known(chosen, "Leave it out" + ", or ask with prefix=" * text)[1]
            other = "Ask about another node, or a newer checkpoint with a new Predictor"
            src = np.repeat(self._known(source, other)[1], len(dst))
            scores = self._scores(src, dst, time_us)
        best = np.argsort(-scores, kind="stable")[:top]
        return list(zip(chosen.take(pa.array(best)).to_pylist(), scores[best].tolist(), strict=True))

    @torch.no_grad()
    def _scores(self, src: Int64, dst: Int64, time_us: int) -> Float32:
        session = self._session
        history = session.task.history
        assert history is not None, "checked by rank"
        encounters = history.look(src, dst, time_us)
        when = np.full(len(src), time_us)
        queries = Queries(np.zeros(len(src), np.int64), src, dst, encounters, when, when)
        if session.strategy.memory is not None:
            return session.strategy.answer(session.model, [queries])[0]
        nodes, place = np.unique(np.concatenate(queries.ends), return_inverse=True)
        z = session.strategy.embeddings(nodes)
        rows = [z[to_device(half, z.device)] for half in np.split(place, 2)]
        scores: Float32 = queries.read(session.model.decoder, rows).cpu().numpy()
        return scores

    def _beginning_with(self, prefix: Any) -> pa.Array:
        """Remembered ids that begin with a prefix."""
        if not isinstance(prefix, str):
            raise Failure(f"prefix is a text, the beginning of ids, found {prefix!r}")
        if not pa.types.is_string(self._ids.type):
            raise Failure(
                f"prefix is for string ids, and nodes of this store have {self._ids.type} ids. Give candidates, a list"
            )
        dense = np.flatnonzero(pc.starts_with(self._ids, prefix).to_numpy(zero_copy_only=False))
        dense = dense[self._session.names.find(dense) >= 0]
        if len(dense) == 0:
            raise Failure(
                f"the checkpoint {self.checkpoint} knows no node whose id begins with {prefix!r}. Ids look like "
                f"{', '.join(repr(one) for one in self._ids[:3].to_pylist())}"
            )
        return self._ids.take(pa.array(dense))

    def _as_ids(self, ids: Iterable[Any]) -> pa.Array | pa.ChunkedArray:
        """A list, set, generator, array or series of ids as an array of the store's type."""
        kind = self._ids.type
        if isinstance(ids, str | bytes):  # whose letters would be ids
            raise Failure(f"ids are a list, found the text {ids!r}. Write [{ids!r}]")
        try:
            if isinstance(ids, pa.Array | pa.ChunkedArray):
                return ids.cast(kind)
            return pa.array(ids if hasattr(ids, "__array__") else list(ids)).cast(kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise Failure(
                f"nodes of this store have {kind} ids, but others were given: {one_line(error)}"
            ) from None

    def _known(self, ids: pa.Array | pa.ChunkedArray, remedy: str) -> tuple[Int64, Int64]:
        """Dense ids, and the model's numbers of these nodes; an unknown one is a failure with this remedy."""
        dense_ids = pc.index_in(ids, self._ids)
        dense: Int64 = dense_ids.fill_null(-1).to_numpy().astype(np.int64)
        numbers = np.where(dense >= 0, self._session.names.find(np.maximum(dense, 0)), -1)
        if (numbers < 0).any():
            first = int(np.flatnonzero(numbers < 0)[0])
            raise Failure(
                f"node {ids[first].as_py()} is unknown to the checkpoint {self.checkpoint}: no event up to its snapshot has "
                f"it, or it was forgotten. {remedy}"
            )
        return dense, numbers


def _microseconds(t: Any) -> int:
    try:
        seconds = float(t) if isinstance(t, Real) else math.nan  # a narrow integer of NumPy would overflow
    except OverflowError:
        seconds = math.inf
    if not abs(seconds) * US_PER_S < _FAR_US:  # NaN is not either
        raise Failure(f"t is seconds since 1970, found {seconds if isinstance(t, Real) else t}")
    return round(seconds * US_PER_S)
