"""Exports of each snapshot: embeddings of touched nodes, and predictions of its events.

The gate holds them back while the model predicts worse than its baseline, or much worse than before.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import structlog
import torch
import xxhash

from freshet_graph.schemas.events import Op
from freshet_graph.schemas.exports import ExportCommit
from freshet_graph.schemas.store import LaneManifest
from freshet_graph.schemas.trainer_config import Hold, TrainerConfig
from freshet_graph.stream.arrays.kinds import Float32, Int64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.exports import ExportWriter
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.data.node_names import NodeNames
from freshet_graph.trainer.models.interface import Model
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import Figures
from freshet_graph.trainer.scoring.predictions import Predictions
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.strategies.interface import Strategy
from freshet_graph.trainer.tasks.interface import Evaluation

HELD = "held"
"""Key of a line of the score file: why the snapshot's export was held back."""


class ExportGate:
    """Judges the task's figure of each snapshot. A snapshot without one has the judgement of the one before.

    A drop is relative to the mean over the last ``over`` released snapshots, each weighted by its events. With fewer, one
    lucky snapshot of few events would hold back all later ones.

    Args:
        hold: When exports are held back.
        selection_metric: See ``Task.selection_metric``.
        baseline: See ``Task.baseline``.
        lines: Those of the score file so far, so that a restart does not change judgements.
    """

    def __init__(
        self,
        hold: Hold,
        selection_metric: tuple[str, int] = ("ap", 1),
        baseline: str = "recency",
        lines: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self._hold, self._baseline = hold, baseline
        self._metric, self._sign = selection_metric
        self._gated = hold.below_recency or hold.ap_drop is not None
        self._let_out: deque[tuple[float, int]] = deque(maxlen=hold.over)
        self._reason: str | None = "no snapshot has a score yet" if self._gated else None
        for line in lines:
            self._remember(line.get(self._metric), line.get("scored", 0), line.get(HELD))

    def check(self, figures: Figures, scored: int) -> str | None:
        """The reason to hold back a snapshot's export; None: it is released.

        Args:
            figures: Of the predictions of the snapshot, before it was learned.
            scored: Number of predicted items.
        """
        if not self._gated:
            return None
        value, baseline = (figures.get((self._metric, "all", scorer)) for scorer in ("model", self._baseline))
        if value is not None:
            self._remember(value, scored, self._reason_to_hold(value, baseline))
        return self._reason

    def _reason_to_hold(self, value: float, baseline: float | None) -> str | None:
        opening = f"{self._metric} {value:.4f} is worse than"
        if self._hold.below_recency and baseline is not None and self._sign * (value - baseline) < 0:
            return f"{opening} {baseline:.4f}, that of {self._baseline}"
        if self._hold.ap_drop is not None and len(self._let_out) == self._hold.over:
            items = sum(scored for _, scored in self._let_out)
            before = sum(let_out * scored for let_out, scored in self._let_out) / items
            if self._sign * (value - before) < -self._hold.ap_drop:
                return f"{opening} {before:.4f}, its mean before, by more than {self._hold.ap_drop}"
        return None

    def _remember(self, value: float | None, scored: int, reason: str | None) -> None:
        if value is None or not self._gated:
            return
        self._reason = reason
        if reason is None and scored:
            self._let_out.append((value, scored))


log = structlog.get_logger()


NODES_AT_ONCE = 1 << 18
"""Nodes embedded and written as one record batch, which bounds memory."""

NO_NUMBERS = "an embedding is not a number"


@dataclass(frozen=True, slots=True)
class Touched:
    """Nodes and when each was last touched: ascending dense ids, and microseconds of event time."""

    nodes: Int64
    time_us: Int64


class Exporter:
    """Makes one export per snapshot; every method is a collective, and rank 0 writes.

    Embeddings are those of all nodes touched since the last export. So a program that applies all exports in order has each
    node's newest embedding, even if exports in between were held back, skipped or cut off.
    """

    def __init__(self, config: TrainerConfig, lane: LaneReader, ranks: Ranks) -> None:
        assert config.store is not None, "a lane lies in a store"
        self._config, self._lane, self._ranks = config, lane, ranks
        self._writer = (
            ExportWriter(config.store, config.exports.name or lane.header.lane) if ranks.rank == 0 else None
        )
        self._found_one = False  # of the exports that it would make

    def export(
        self,
        session: Session,
        manifest: LaneManifest,
        evaluation: Evaluation | None,
        scores_version: str,
    ) -> str | None:
        """Export a snapshot that was learned, unless that is done already.

        Args:
            session: Its embeddings are those after the snapshot, without nodes that were touched and forgotten since the last
                export.
            manifest: The snapshot.
            evaluation: On rank 0 the predictions of its events, before they were learned.
            scores_version: ``version_of`` the weights of the predictions.

        Returns:
            On rank 0 the reason if nothing was exported; None if the export exists.
        """
        wanted = self._config.exports
        strategy, names = session.strategy, session.names
        version = version_of(session.model)
        after = self._ranks.from_first(self._before(manifest.sequence, version))
        if after == manifest.sequence:
            if self._writer is not None and not self._found_one:
                log.info(
                    "snapshots are exported already, with the same weights, and are not exported again",
                    exports=wanted.name or self._lane.header.lane,
                    tau=manifest.tau,
                )
            self._found_one = True
            return None
        touched = (
            touched_nodes(self._lane.log, self._lane.manifests[after + 1 : manifest.sequence + 1])
            if wanted.embeddings
            else None
        )
        if self._writer is None:
            for _ in embedded(strategy, touched, names, self._lane, self._ranks, version) if touched else ():
                pass  # rank 0 writes them
            return None
        with self._writer.begin() as export:
            files: dict[str, Any] = {}
            if touched is not None:
                written = _Written()
                batches = embedded(strategy, touched, names, self._lane, self._ranks, version)
                files["embeddings"] = export.add("embeddings", lambda sink: written.write(sink, batches))
                if not written.finite:
                    export.discard()
                    return NO_NUMBERS
                files["num_embeddings"] = written.rows
            if wanted.scores:
                links = None if evaluation is None else evaluation.links
                table = score_table(self._lane.log, manifest.tau, links, scores_version)
                files["scores"] = export.add(
                    "scores", lambda sink: _Written().write(sink, table.to_batches(NODES_AT_ONCE) or [table])
                )
                files["num_scores"] = len(table)
            record = ExportCommit(
                number=export.number,
                lane=self._lane.header.lane,
                tau=manifest.tau,
                sequence=manifest.sequence,
                after=after,
                model=self._config.model,
                model_version=version,
                scores_version=scores_version,
                time_us=self._lane.log.snapshots[manifest.sequence].max_t_us,
                **files,
            )
            self._writer.commit(export, record)
        if wanted.keep is not None:
            self._writer.retain(wanted.keep)
        return None

    def _before(self, sequence: int, version: str) -> int:
        """Rank 0: the snapshot up to which embeddings were exported; ``sequence`` itself if its export exists."""
        if self._writer is None:
            return 0
        for commit in reversed(self._writer.reader.commits):
            if commit.lane != self._lane.header.lane:
                raise Failure(
                    f"{self._writer.reader.root} has exports of lane {commit.lane}, this trainer's lane is "
                    f"{self._lane.header.lane}. Give one of them a name of its own in the key exports.name"
                )
            if commit.sequence == sequence and commit.model_version == version:
                return sequence
            if commit.sequence < sequence and (commit.embeddings or not self._config.exports.embeddings):
                return commit.sequence
        return -1


class _Written:
    """Writes a file; counts its rows and checks its embeddings."""

    def __init__(self) -> None:
        self.rows = 0
        self.finite = True

    def write(self, sink: Any, batches: Any) -> None:
        """Write record batches of one schema, at least one, as an Arrow IPC file."""
        writer = None
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_file(sink, batch.schema)
            self.rows += len(batch)
            if "embedding" in batch.schema.names:
                self.finite &= bool(np.isfinite(batch.column("embedding").values.to_numpy()).all())
            writer.write(batch)
        assert writer is not None
        writer.close()


def version_of(model: Model) -> str:
    """The model's name and the xxh64 of its weights: equal versions have the same weights, bit for bit."""
    digest = xxhash.xxh64()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).tobytes())
    return f"{model.name}-{digest.hexdigest()}"


def touched_nodes(log_reader: LogReader, manifests: list[LaneManifest]) -> Touched:
    """Ends of all events of some snapshots, deletes and node events as well, and when each was last touched."""
    ends, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for manifest in manifests:
        events = log_reader.events(manifest.tau)
        t = events["t"].to_numpy()
        for column in ("src_node", "dst_node"):
            nodes = events[column].to_numpy()
            has_node = nodes >= 0
            ends.append(nodes[has_node])
            times.append(t[has_node])
    every, when = np.concatenate(ends), np.concatenate(times)
    nodes, place = np.unique(every, return_inverse=True)
    newest = np.full(len(nodes), np.iinfo(np.int64).min)
    np.maximum.at(newest, place, when)
    return Touched(nodes, newest)


def embedded(
    strategy: Strategy, touched: Touched, names: NodeNames, lane: LaneReader, ranks: Ranks, version: str
) -> Iterator[pa.RecordBatch]:
    """Embeddings of nodes, some at a time; a collective at each step, with complete batches on rank 0.

    Columns: ``id`` (the producer's), ``node`` (dense), ``t`` (when it was last touched, UTC), ``model_version``,
    ``embedding`` (float32, of one length).
    """
    every = names.find(touched.nodes)
    remembered = every >= 0
    every, ids, times = every[remembered], touched.nodes[remembered], touched.time_us[remembered]
    mine = strategy.owned(len(names))
    for begin in range(0, max(len(every), 1), NODES_AT_ONCE):
        nodes = every[begin : begin + NODES_AT_ONCE]
        owned = mine[nodes]
        rows = _on_first(strategy.embeddings(nodes[owned]).float(), np.flatnonzero(owned), ranks)
        here = slice(begin, begin + len(rows))
        yield pa.RecordBatch.from_arrays(
            [
                lane.log.external_ids_of(ids[here]),
                pa.array(ids[here]),
                pa.array(times[here]).cast(pa.timestamp("us", "UTC")),
                _repeated(version, len(rows)),
                pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1]),
            ],
            names=["id", "node", "t", "model_version", "embedding"],
        )


def _repeated(version: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([version]))


def _on_first(rows: torch.Tensor, place: Int64, ranks: Ranks) -> Float32:
    """On rank 0 all ranks' rows, each at its place; elsewhere none."""
    sent = [len(rows), *[0] * (ranks.size - 1)]
    places, received = ranks.exchange_blocks(place, sent, "exports", to=0)
    table = ranks.exchange(rows.contiguous(), sent, received, "exports").cpu().numpy()
    ordered = np.empty_like(table)
    ordered[places] = table
    return ordered


def score_table(log_reader: LogReader, tau: int, predictions: Predictions | None, version: str) -> pa.Table:
    """The predictions of a snapshot's events, by rows of the log's events.

    Columns: ``row`` (of the snapshot's ``events.arrow``), ``event_id`` (the producer's, null without one), ``src``,
    ``dst``, ``t``, ``model_version``, ``score`` (the logit: log-odds of the event against its negative),
    ``negative_score`` (of the same source and a random destination that it does not meet then; null without one).
    """
    events = log_reader.events(tau)
    inserts = np.flatnonzero(events["op"].to_numpy() == int(Op.INSERT))
    event = predictions.event if predictions is not None else np.empty(0, np.int64)
    scores = predictions.positive[:, 0] if predictions is not None else np.empty(0)
    against = predictions.negative[:, 0] if predictions is not None else np.empty(0)
    opposed = predictions.opposed if predictions is not None else np.empty(0, np.bool_)
    rows = pa.array(inserts[event])
    scored_events = events.select(["event_id", "src", "dst", "t"]).take(rows).combine_chunks()
    return pa.table(
        {
            "row": rows,
            "event_id": scored_events["event_id"],
            "src": scored_events["src"],
            "dst": scored_events["dst"],
            "t": scored_events["t"].cast(pa.timestamp("us", "UTC")),
            "model_version": _repeated(version, len(rows)),
            "score": pa.array(scores.astype(np.float32)),
            "negative_score": pa.array(against.astype(np.float32), mask=~opposed),
        }
    )
