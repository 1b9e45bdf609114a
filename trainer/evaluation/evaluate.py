"""Offline evaluation on a file or a store: train, choose an epoch by validation, test, as in the TGN line of work."""

import copy
import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
import torch
from numpy.typing import NDArray

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import US_PER_S, Op
from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.partition.offline import training_params
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.scratch import scratch_folder
from freshet_graph.stream.store.as_of import Moment
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.event_columns import event_columns
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.store_events import is_store, read_source
from freshet_graph.stream.store.undisturbed import undisturbed
from freshet_graph.trainer.data.examples import insert_events
from freshet_graph.trainer.data.history import NO_EVENTS, Inserts
from freshet_graph.trainer.evaluation.choice import best_lane, choose, lanes_of
from freshet_graph.trainer.evaluation.classification import (
    event_labels,
    label_cautions,
    label_figures,
    require_both_kinds,
)
from freshet_graph.trainer.evaluation.costs import costs_of, mapped_bytes, of_ranks, peak_mib, work
from freshet_graph.trainer.evaluation.delayed import (
    DelayedRun,
    baselines_of,
    comes_later,
    named,
    with_label_delay,
)
from freshet_graph.trainer.evaluation.details import Details, JudgedSnapshot
from freshet_graph.trainer.evaluation.foreign_scores import ForeignScores, evaluate_scores
from freshet_graph.trainer.evaluation.left_model import CONFIG, leave_model, require_no_model
from freshet_graph.trainer.evaluation.progress import Progress
from freshet_graph.trainer.evaluation.protocol import OfflineProtocol
from freshet_graph.trainer.evaluation.split import Split, draw_masked, split_by_time, without_training_of
from freshet_graph.trainer.evaluation.stored_negatives import StoredNegatives, write_negatives
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import Figures, flat_figures, warn_of
from freshet_graph.trainer.scoring.predictions import Predictions, join
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.session.snapshot_trainer import SnapshotTrainer
from freshet_graph.trainer.strategies.cost_model import AUTO
from freshet_graph.trainer.strategies.figures import declared_by, means_of, merged, shown
from freshet_graph.trainer.strategies.interface import StepReport
from freshet_graph.trainer.tasks.interface import (
    TASKS,
    Evaluation,
    SnapshotExamples,
    classifies,
    create_task,
    is_split,
)
from freshet_graph.trainer.tasks.node_regression import SCORERS
from freshet_graph.trainer.validation import Configured, as_config, require_evaluable


@dataclass(frozen=True, slots=True)
class Source:
    """The data of an evaluation, as on the command line.

    Attributes:
        data: A file, or a glob or folder of files; or a store's folder or address.
        as_of: A moment of the store; None: all sealed snapshots.
        reading: How a file is read.
        shares: Of training, validation and test.
        masked_share: Share of the nodes that are hidden from training.
    """

    data: str | Path
    as_of: Moment | None
    reading: FileOptions
    shares: tuple[float, float, float]
    masked_share: float


def build_store_of(
    config: TrainerConfig, source: Source, folder: str, parts: int, ranks: Ranks
) -> tuple[Split, Int64, str] | None:
    """Make a store of the data, on rank 0 while the others wait; a collective.

    Args:
        config: Its ``lane`` is the algorithm of the store's one lane; under ``auto`` there are several, and one is chosen.
        source: The data.
        folder: Of the new store.
        parts: Of the lane.
        ranks: All ranks.

    Returns:
        The split, dense ids of the masked nodes, int64, and the lane. None on other ranks if rank 0 failed, which raises the
        error.
    """
    error: Exception | None = None
    said = ""
    if ranks.rank == 0:
        try:
            split, masked, lane = _build(config, source, folder, parts, ranks.size)
            said = json.dumps([*split.borders, masked.tolist(), lane])
        except Exception as caught:  # noqa: BLE001  raised below, after the others know
            error = caught
    said = ranks.text_from_first(said)
    if error is not None:
        raise error
    if not said:
        return None
    train_until, validate_until, nodes, chosen = json.loads(said)
    return Split(train_until, validate_until), np.array(nodes, np.int64), chosen


def _build(
    config: TrainerConfig, source: Source, folder: str, parts: int, ranks: int
) -> tuple[Split, Int64, str]:
    """The store's log and its lanes; see ``build_store_of``."""
    about_nodes = TASKS.find(config.task).subject == "nodes"
    read = read_source(str(source.data), source.as_of, source.reading)
    interval_us = round(config.interval_s * US_PER_S) if config.interval_s else None
    if interval_us is None and is_store(str(source.data)):
        interval_us = LogReader(str(source.data)).header.interval_us
    events, hidden = read.events, pa.array([], read.events["src"].type)
    is_insert = pc.equal(events["op"], int(Op.INSERT))
    split = None if about_nodes else split_by_time(events["t"].filter(is_insert).to_numpy(), source.shares)
    if split is not None and source.masked_share:
        hidden = draw_masked(events.filter(is_insert), split, source.masked_share, config.seed)
        events = without_training_of(hidden, events, split)
    labels = None
    if is_store(str(source.data)):
        labels = undisturbed(str(source.data), lambda: LogReader(str(source.data)).labels())
    build_store(replace(read, events=events), folder, interval_us=interval_us, labels=labels)
    log = LogReader(folder)
    # tasks about nodes have questions in every snapshot, whatever its number of events
    split = split or split_by_time(snapshot_ends(log), source.shares, "snapshots")
    begin_us = pc.min(events["t"]).as_py()
    names = lanes_of(config, parts)
    for name in names:
        lane = Lane(
            name=name,
            algorithm=name,
            parts=parts,
            window=config.window,
            edge_life=config.edge_life,
            seed=config.seed,
            params=training_params(name, config.lane_params, begin_us, math.floor(split.train_until_us)),
        )
        with LaneWriter(folder, lane) as writer:
            writer.catch_up()
    chosen = names[0]
    if len(names) > 1:
        chosen = best_lane(config, [LaneReader(folder, name) for name in names], split, ranks)
    return split, np.flatnonzero(pc.is_in(log.external_ids(), hidden).to_numpy()), chosen


def all_inserts(log: LogReader) -> Inserts:
    """The insert events of all snapshots, in log order."""
    parts = [
        insert_events(event_columns(log.events(snapshot.tau), snapshot.tau, log.header.interval_us, 0))
        for snapshot in log.snapshots
    ]
    columns = ("src", "dst", "visible_us", "late")
    parts.append(NO_EVENTS)  # so that an empty log has columns of the right types
    return Inserts(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))


def snapshot_ends(log: LogReader) -> Int64:
    """The last microsecond of every snapshot that has events, int64."""
    taus = np.array([snapshot.tau for snapshot in log.snapshots], np.int64)
    return (taus + 1) * log.header.interval_us - 1


log = structlog.get_logger()

WARMED = 32
"""Events of a snapshot used before seconds are counted."""

LABEL_FIGURES = ("auroc", "validation_auroc", "random_auroc", "activity_auroc")

NONE = float("-inf")
"""In place of a figure that cannot be computed."""

TABLE = {
    "ap": ("ap", "all", "model"),
    "auc": ("auc", "all", "model"),
    "mrr": ("mrr", "all", "model"),
    "hits_at_10": ("hits_at_10", "all", "model"),
    "inductive_ap": ("ap", "inductive", "model"),
    "transductive_ap": ("ap", "transductive", "model"),
    "masked_ap": ("ap", "masked", "model"),
    "historical_ap": ("ap", "historical", "model"),
    **{
        f"{scorer}_historical_ap": ("ap", "historical", scorer)
        for scorer in ("random", "edgebank", "edgebank_window", "recency", "recency_popularity")
    },
    "random_ap": ("ap", "all", "random"),
    "edgebank_ap": ("ap", "all", "edgebank"),
    "edgebank_window_ap": ("ap", "all", "edgebank_window"),
    "recency_ap": ("ap", "all", "recency"),
    "recency_popularity_ap": ("ap", "all", "recency_popularity"),
    **{f"{scorer}_mse".removeprefix("model_"): ("mse", "all", scorer) for scorer in SCORERS},
}
METRICS = {metric for metric, _, _ in TABLE.values()}
"""Metrics of the built-in tasks; every figure of other tasks is reported."""

ABOUT_RUN = (
    "seed", "best_epoch", "epochs", "discarded", "cut", "event_balance", "train_s", "wait_s", "comm_seconds", "sent_bytes",
    "epoch_s", "peak_mib", "rank_events", "rank_cpu_s", "rank_memory_bytes", "rank_graph_bytes", "rank_mapped_bytes",
    "training",
)  # fmt: skip


def evaluate(
    config: Configured,
    data: str | Path,
    ranks: Ranks | None = None,
    *,
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15),
    seeds: int = 1,
    as_of: Moment | None = None,
    negatives: str | None = None,
    scores: str | None = None,
    reading: FileOptions = AS_EVENTS,
    masked_nodes: float = 0.0,
    details: Details | None = None,
    model_out: Path | None = None,
    label_delay_s: float | None = None,
) -> dict[str, Any] | None:
    """Evaluate the configured model on a file of events; a collective.

    The file becomes a store in a temporary folder, with one lane by the algorithm that ``lane`` names. Every epoch
    passes over the training events in log order and then predicts the validation events; the weights of the best
    epoch predict the test events. With ``patience`` epochs end early. Negatives are uniform over the file's destinations;
    those to learn from, over the destinations of the training split.

    Args:
        config: The configuration, its file, or a dict of its keys: ``interval_s``, ``parts``, ``model``, ``optimisation`` …
            as for training. ``auto`` as ``lane`` or ``strategy`` is chosen once, by the training split.
        data: A file, or a glob or folder of files; or a store's folder or address, whose events up to ``as_of`` are read
            like a file's, with late ones at their own time.
        ranks: All ranks, on one machine; None: this process is the only one.
        shares: Of training, validation and test in quantiles of the events' times; for tasks about nodes, of the snapshots'
            times.
        seeds: Repetitions with seeds ``seed``, ``seed`` + 1 …
        as_of: A moment of the store; None: all sealed snapshots.
        negatives: A file of negatives for the figures of all repetitions; created from ``seed`` if it is missing.
        scores: A file of another model's scores for the test events and these negatives: it is judged, on one rank,
            and nothing is trained.
        reading: How a file is read.
        masked_nodes: Share of the nodes, in [0, 1), that are hidden from training; drawn once, from ``seed``.
        details: Files to write on rank 0; None: none.
        model_out: New or empty folder, in which the first seed's model is left for ``Predictor``; None: nowhere.
        label_delay_s: Labels of events become visible so many seconds after them; None: as ``task_params`` says.

    Returns:
        On rank 0 the keys of docs/cli.md, means over seeds, ``<figure>_spread`` (standard deviation) with more than one
        seed, and ``runs``, one entry per seed, without figures that cannot be computed. Elsewhere None.
    """
    ranks, details = ranks or Ranks(), details or Details()
    details.require_writable()
    config = as_config(config)
    if label_delay_s is not None:
        config = with_label_delay(config, label_delay_s)
    if model_out is not None:
        require_no_model(model_out)
    require_evaluable(config, ranks.size)  # before a large file is partitioned
    if scores is not None and negatives is None:
        raise Failure("--scores needs --negatives FILE, whose negatives were scored")
    if scores is not None and ranks.size > 1:
        raise Failure("--scores trains nothing. Leave --ranks out")
    task = TASKS.find(config.task)
    if negatives is not None and task.subject != "pairs":
        raise Failure(f"--negatives is about pairs, but task {config.task} asks about nodes. Leave it out")
    if masked_nodes and task.subject != "pairs":
        raise Failure(f"--masked-nodes is about pairs, but task {config.task} asks about nodes. Leave it out")
    parts = config.parts or ranks.size
    with ExitStack() as stack:  # mapped files stay readable for ranks that have not finished
        made = str(stack.enter_context(scratch_folder("evaluate"))) if ranks.rank == 0 else ""
        folder = ranks.text_from_first(made)
        built = build_store_of(
            config, Source(data, as_of, reading, shares, masked_nodes), folder, parts, ranks
        )
        if built is None:
            return None
        split, masked, lane_name = built
        of_lane = {"lane": lane_name} if config.lane == AUTO else {}
        config = config.model_copy(update={"lane": lane_name})
        lane = LaneReader(folder, config.lane)
        cautions: list[dict[str, Any]] = []
        is_delayed = classifies(task) and comes_later(config, lane)
        if is_delayed:
            _require_one_pass(
                negatives=negatives, scores=scores, masked_nodes=masked_nodes, model_out=model_out
            )
        labels = event_labels(lane) if classifies(task) and not is_delayed else None
        inserts = all_inserts(lane.log)
        if labels is not None:
            every = np.concatenate(list(labels.values()))
            require_both_kinds(every, inserts.visible_us, split)
            cautions = label_cautions(every, inserts.visible_us, split)
        stored = _stored(negatives, lane, inserts, split, config.seed, ranks) if negatives else None
        if scores is not None:
            protocol = OfflineProtocol(lane, inserts, split, 0, stored, masked)
            judged = evaluate_scores(ForeignScores(scores), protocol, ranks, config.history_moment)
            details.take(None, judged, named_figures)
            details.write(lane, inserts, "ap", f"{Path(scores).stem} on {Path(data).name}, test")
            return _foreign(scores, join([part for _, part in judged]), lane, inserts)

        def run_of(config: TrainerConfig, seed: int) -> _Run:
            links = OfflineProtocol(lane, inserts, split, seed, stored, masked) if is_split(task) else None
            return _Run(config, lane, ranks, split, seed, links, labels)

        of_choice: dict[str, Any] = {}
        if config.strategy == AUTO and not is_delayed:
            choice = choose(config, lane, ranks, split, lambda named: run_of(named, named.seed).session)
            config, of_choice = choice.config, choice.shown
        runs: list[dict[str, Any]] = []
        no_negative: dict[str, int] = {}
        for seed in range(config.seed, config.seed + seeds):
            if is_delayed:
                delayed = DelayedRun(config, lane, ranks, split, seed, folder)
                runs.append(delayed.figures())
                cautions = cautions or delayed.cautions
                details.take(seed, delayed.judged, named)
                continue
            run = run_of(config, seed)
            no_negative = run.no_negative
            if details.scores_out is not None and hasattr(run.session.task, "keeps_rows"):
                run.session.task.keeps_rows = True
            run.keeps_chosen = model_out is not None and seed == config.seed
            runs.append(run.figures())
            cautions = cautions or run.cautions
            details.take(seed, run.judged, named_figures)
            if model_out is not None and run.chosen is not None:
                leave_model(model_out, config, folder, lane, ranks, run.chosen, split)
        if ranks.rank == 0:
            metric = LABEL_FIGURES[0] if classifies(task) else run.metric
            details.write(lane, inserts, metric, f"{config.model} on {Path(data).name}, test")
        tested = int(np.count_nonzero(split.test(inserts.visible_us)))
    if ranks.rank != 0:
        return None
    for caution in cautions:
        warn_of(caution, data=str(data))
    if no_negative and no_negative["test"] == tested and not classifies(task):
        log.warning(
            "no score, because there are no negatives: they are destinations that a source does not meet at that time",
            data=str(data),
        )
    elif any(no_negative.values()):
        log.warning(
            "events without a possible negative are left out: their source meets every destination at their time",
            data=str(data),
            **no_negative,
        )
    summary = _summary(runs)
    return {
        "model": config.model,
        "strategy": config.strategy,
        **of_lane,
        **of_choice,
        "ranks": ranks.size,
        "epochs": float(np.mean([run["epochs"] for run in runs])),
        **summary,
        "inductive_protocol": "masked" if masked_nodes else "new",
        **({"masked_nodes": len(masked)} if masked_nodes else {}),
        "seeds": seeds,
        "parts": parts,
        "snapshots": len(lane.manifests),
        "events": len(inserts),
        **({"no_negative": no_negative} if no_negative else {}),
        **({"baselines": baselines_of(summary)} if is_delayed else {}),
        **({} if model_out is None else {"model_config": str(model_out / CONFIG)}),
        "runs": runs,
        **({"cautions": cautions} if cautions else {}),
    }


def _require_one_pass(**options: Any) -> None:
    """Check that no option needs epochs, or negatives beside those of ``run``.

    Raises:
        Failure: One is given.
    """
    for name, value in options.items():
        if value:
            raise Failure(
                f"--{name.replace('_', '-')} does not go with labels that come later, which are judged in one pass as by run. "
                "Leave it out, or remove delay_s and negative_after_s from task_params"
            )


class _Run:
    """One seed: all epochs, then the test."""

    def __init__(
        self,
        config: TrainerConfig,
        lane: LaneReader,
        ranks: Ranks,
        split: Split,
        seed: int,
        links: OfflineProtocol | None,
        labels: dict[int, NDArray[np.int64]] | None,
    ) -> None:
        self.config, self.lane, self.ranks = config, lane, ranks
        self.split, self.seed, self.labels = split, seed, labels
        self.no_negative = links.no_negative if links is not None else {}
        task: Any = create_task(config, lane)
        if hasattr(task, "require_labels"):
            task.require_labels()
        task = task if links is None else task.offline(links)
        self.session = Session(config, lane, ranks, seed=seed, task=task)
        self.metric, self.sign = self.session.task.selection_metric
        self.snapshot_trainer = SnapshotTrainer(self.session)
        self.reports: list[StepReport] = []
        self.events, self.cpu_s = 0, 0.0  # that this rank learned in all epochs, and its processor's seconds
        self.memory_bytes = self.graph_bytes = self.mapped_bytes = 0  # the most so far
        self.cautions: list[dict[str, Any]] = []  # about the last figures, which are those of the test
        self.keeps_chosen = False
        self.chosen: tuple[dict[str, Any], dict[str, Any]] | None = (
            None  # weights and strategy before the test
        )
        self.judged: list[
            tuple[int, JudgedSnapshot]
        ] = []  # τ and evaluation of each test snapshot, on rank 0
        self.progress = Progress(
            shown=ranks.rank == 0, seed=seed, epochs=config.optimisation.passes, snapshots=len(lane.manifests)
        )

    def figures(self) -> dict[str, Any]:
        """Train, choose, test: figures of the test, seconds per epoch and peak memory of this rank."""
        best, chosen, seconds = NONE, 0, []
        weights, state = self._copy()
        self._warm_up()
        self._put_back(weights, state)
        for epoch in range(self.config.optimisation.passes):
            began = time.perf_counter()
            validation, loss, discarded = self._epoch(epoch)
            learned = {} if loss is None else {"loss": loss}
            seconds.append(time.perf_counter() - began)
            score = self._agree(validation)
            if self.ranks.rank == 0:
                shown = self._validated(score)
                figures = ", ".join(f"{name} {value:.4f}" for name, value in {**shown, **learned}.items())
                sentence = (
                    f"seed {self.seed}, epoch {epoch + 1} of {self.config.optimisation.passes}: {figures}"
                )
                log.info(
                    "epoch",
                    seed=self.seed,
                    epoch=epoch,
                    **learned,
                    discarded=discarded,
                    **shown,
                    for_people=sentence,
                )
            if score > best or best == NONE:  # without a validation figure, the last epoch
                best, chosen = score, epoch
                weights, state = self._copy()
            elif epoch - chosen == self.config.optimisation.patience:
                break
        self.snapshot_trainer.require_learned()
        self._put_back(weights, state)
        self.chosen = self._copy() if self.keeps_chosen else None
        discarded = sum(report.discarded for report in self.reports)
        events = of_ranks(self.events, self.ranks)
        return {
            "seed": self.seed,
            **self._test_figures(),
            **self._validated(best),
            "best_epoch": chosen,
            "epochs": len(seconds),
            "discarded": discarded / len(seconds),
            "cut": discarded / max(1, discarded + sum(events)),
            "event_balance": max(events) * len(events) / max(1, sum(events)),
            **work(self.reports, self.ranks),
            "epoch_s": sum(seconds) / len(seconds),
            "peak_mib": peak_mib(),
            "rank_events": [number / len(seconds) for number in events],
            "rank_cpu_s": of_ranks(self.cpu_s / len(seconds), self.ranks),
            "rank_memory_bytes": of_ranks(self.memory_bytes, self.ranks),
            "rank_graph_bytes": of_ranks(self.graph_bytes, self.ranks),
            "rank_mapped_bytes": of_ranks(self.mapped_bytes, self.ranks),
            **self._training_figures(),
        }

    def _training_figures(self) -> dict[str, Any]:
        """``training``: the strategy's own figures on this rank, over all epochs; empty if it has none."""
        declared = declared_by(self.session.strategy)
        training = shown(declared, merged(declared, (report.figures for report in self.reports)))
        return {"training": means_of([training])} if training else {}

    def _test_figures(self) -> dict[str, float]:
        """Figures of the test by their names in the result."""
        if self.labels is None:
            return named_figures(self._test())
        settings = TASKS.options(self.config.task, self.config.task_params)
        figures, labels = label_figures(
            self.session, self._rest, self.labels, self.split, settings, self.seed
        )
        self.judged = [(part.tau, part) for part in labels]
        return figures

    def _validated(self, score: float) -> dict[str, float]:
        """The figure of validation by its name; empty without one."""
        return {} if score == NONE else {f"validation_{self.metric}": self.sign * score}

    def _rest(self) -> Iterator[SnapshotExamples]:
        """Every snapshot once more, after all epochs."""
        return self._example_sets(float("inf"), self.config.optimisation.passes)

    def _warm_up(self) -> None:
        """Compile kernels by learning a few events of the first snapshots; random generators are put back.

        The caller undoes the learning. Three snapshots are used because only later ones have a past.
        """
        devices = [self.ranks.device] if self.ranks.device.type == "cuda" else []
        warmed = 0
        with torch.random.fork_rng(devices):
            for examples in self._example_sets(self.split.train_until_us, 0):
                few = self.split.train(examples.times) & (np.arange(examples.items) < WARMED)
                if few.any():
                    queries = examples.of_events(few)
                    self._evaluate(queries, baselines=False)
                    self.session.strategy.learn([queries], 0)
                    warmed += 1
                if warmed == 3:
                    return

    def _copy(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Weights with the strategy's state: a memory replayed through other weights differs."""
        session = self.session
        return copy.deepcopy(session.model.state_dict()), copy.deepcopy(session.strategy.state())

    def _put_back(self, weights: dict[str, Any], state: dict[str, Any]) -> None:
        self.session.model.load_state_dict(weights)
        self.session.strategy.restore(state)

    def _epoch(self, epoch: int) -> tuple[Figures, float | None, int]:
        """Figures of the validation, mean loss if any event was learned, and number of events that no rank could learn."""
        losses, learned, discarded, validation = 0.0, 0, 0, []
        self.session.strategy.rewind()
        self.snapshot_trainer.rewind()
        for examples in self._example_sets(self.split.validate_until_us, epoch):
            train, validate = self.split.train(examples.times), self.split.validate(examples.times)
            if train.any():
                learned_examples, began_s = examples.of_events(train), time.process_time()
                report = self.snapshot_trainer.once(learned_examples, epoch)
                self.cpu_s += time.process_time() - began_s
                self.events += len(learned_examples)
                self.reports.append(report)
                losses += (report.loss or 0.0) * report.events
                learned += report.events
                discarded += report.discarded
            if validate.any():
                validation.append(self._evaluate(examples.of_events(validate), baselines=False))
        return self._figures(validation), losses / learned if learned else None, discarded

    def _test(self) -> Figures:
        evaluations = [
            (
                examples.tau,
                self._evaluate(examples.of_events(self.split.test(examples.times)), baselines=True),
            )
            for examples in self._rest()
            if self.split.test(examples.times).any()
        ]
        self.judged = [(tau, part) for tau, part in evaluations if part is not None]
        return self._figures([part for _, part in evaluations])

    def _evaluate(self, examples: Any, *, baselines: bool) -> Evaluation | None:
        """Predict; without baselines only the figures for validation."""
        session = self.session
        return session.task.evaluate(
            session.strategy, session.model, session.untrained if baselines else None, examples, self.ranks
        )

    def _figures(self, parts: list[Evaluation | None]) -> Figures:
        evaluations = [part for part in parts if part is not None]
        if not evaluations:
            return {}
        together = self.session.task.join(evaluations)
        self.cautions = together.cautions
        return together.figures()

    def _example_sets(self, until_us: float, epoch: int) -> Iterator[SnapshotExamples]:
        """Every snapshot that begins by ``until_us``, from the first one."""
        self.session.reopen()
        for number, manifest in enumerate(self.lane.manifests):
            if manifest.tau * self.lane.header.interval_us > until_us:
                return
            self.session.advance(manifest)
            yield self.session.task.examples(self.session.view, self.session.strategy, epoch=epoch)
            self.memory_bytes = max(self.memory_bytes, self.session.strategy.held_bytes.get("memory", 0))
            self.graph_bytes = max(self.graph_bytes, self.session.graph_bytes)
            self.mapped_bytes = max(self.mapped_bytes, mapped_bytes())
            self.progress.snapshot_done(epoch, number)

    def _agree(self, figures: Figures) -> float:
        """Rank 0's validation figure, larger is better, on every rank; ``NONE`` without one."""
        figure = figures.get((self.metric, "all", "model"))
        signed = 0.0 if self.ranks.rank else NONE if figure is None else self.sign * figure
        return self.ranks.total([signed])[0]


def _stored(
    path: str, lane: LaneReader, inserts: Inserts, split: Split, seed: int, ranks: Ranks
) -> StoredNegatives:
    """The negatives of a file, which rank 0 first creates if it is missing; a collective."""

    def create() -> None:
        if Path(path).exists():
            return
        drawn = OfflineProtocol(lane, inserts, split, seed).every_snapshot()
        try:
            write_negatives(path, lane, inserts, split, drawn, {"seed": seed, "events": len(inserts)})
        except OSError as error:
            raise Failure(
                f"--negatives {path} cannot be written: {error.strerror or error}. Give another path"
            ) from None
        log.info("negatives written", file=path, seed=seed)

    ranks.on_first(create)
    return StoredNegatives(path, lane, inserts, split)


def named_figures(figures: Figures) -> dict[str, float]:
    """Figures by their names in results; those of other tasks than the built-in ones are all there."""
    others = {key: value for key, value in figures.items() if key[0] not in METRICS}
    return {name: figures[key] for name, key in TABLE.items() if key in figures} | flat_figures(others)


def _foreign(path: str, predictions: Predictions, lane: LaneReader, inserts: Inserts) -> dict[str, Any]:
    figures = predictions.figures()
    return {
        "model": Path(path).stem,
        "strategy": "scores",
        **{name: figures[key] for name, key in TABLE.items() if key in figures},
        "scored": len(predictions.positive),
        "snapshots": len(lane.manifests),
        "events": len(inserts),
    }


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    figures = dict.fromkeys((*TABLE, *LABEL_FIGURES))
    figures |= {key: None for run in runs for key in run if key not in ABOUT_RUN and "validation" not in key}
    for key in (*figures, "discarded", "cut", "event_balance", "epoch_s", "train_s", "wait_s", "peak_mib"):
        values = [run[key] for run in runs if key in run]
        if values:
            summary[key] = max(values) if key == "peak_mib" else float(np.mean(values))
        if len(values) > 1 and key in figures:
            summary[f"{key}_spread"] = float(np.std(values, ddof=1))
    for key in (name for name in ABOUT_RUN if name.startswith("rank_")):
        summary[key] = [max(ranks) for ranks in zip(*(run[key] for run in runs), strict=True)]
    trainings = [run["training"] for run in runs if "training" in run]
    return {**summary, **costs_of(runs), **({"training": means_of(trainings)} if trainings else {})}
