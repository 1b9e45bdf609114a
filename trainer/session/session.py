"""The one assembly of lane, model, task, strategy and ranks, for run, evaluate, the predictor and tests."""

import copy
import os
from collections.abc import Mapping
from typing import Any

import torch

from freshet_graph.schemas.store import LaneHeader, LaneManifest
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.window.view import WindowView
from freshet_graph.trainer.data.node_names import NodeNames
from freshet_graph.trainer.data.views import (
    LogWindow,
    NamedEvents,
    NamedGraph,
    WithMessages,
    edge_events,
    named,
    with_messages,
    without_labels,
)
from freshet_graph.trainer.models.interface import MODELS, Model, ModelShape, create_model
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.interface import (
    STRATEGIES,
    Needs,
    Setting,
    Strategy,
    require_together,
)
from freshet_graph.trainer.tasks.interface import Task, create_task, label_messages
from freshet_graph.trainer.timeline.graph import TimelineView


class Session:
    """One rank's part in learning a lane.

    Args:
        config: Model, strategy, task and their parameters.
        lane: This rank's reader of the lane.
        ranks: All ranks; each makes a session.
        seed: Of weights and draws; None: the configuration's.
        task: The task; None: the configured one.

    Attributes:
        model: To be trained.
        untrained: The same model with its initial weights, never trained.
        task: Makes the examples and judges predictions.
        strategy: Trains the model.
        names: Numbers of the remembered nodes.
        view: The lane as the strategy reads it.

    Raises:
        Failure: One of them is unknown, a parameter is wrong, or they do not go together.
    """

    def __init__(
        self,
        config: TrainerConfig,
        lane: LaneReader,
        ranks: Ranks,
        *,
        seed: int | None = None,
        task: Task | None = None,
    ) -> None:
        self.config, self.lane, self.ranks = config, lane, ranks
        self.seed = config.seed if seed is None else seed
        options = STRATEGIES.options(config.strategy, config.strategy_params)
        self.task: Task = create_task(config, lane) if task is None else task
        torch.manual_seed(self.seed)
        model = new_model(config, self.task, lane.header, self.seed)
        require_together(config.strategy, model, self.task, config.optimisation, lane.header, ranks.size)
        self.model: Model = model.to(ranks.device)
        self.untrained: Model = copy.deepcopy(self.model)
        setting = Setting(
            self.model, self.task, lane.header, ranks, config.optimisation, self.seed, config.horizon,
            config.smoothing, config.history_moment, config.compile,
        )  # fmt: skip
        self.strategy: Strategy = STRATEGIES.find(config.strategy)(setting, options)
        self.reopen()

    def reopen(self) -> None:
        """Return to the first snapshot of the lane. The strategy keeps its memory and what it learned."""
        self.names = NodeNames()
        self.view = self._fresh_view()
        self.task.rewind(self.model)

    def rewind(self) -> None:
        """As ``reopen``, but the strategy forgets the stream; what was learned stays."""
        self.reopen()
        self.strategy.rewind()

    def advance(self, manifest: LaneManifest) -> None:
        """Make a snapshot the newest; the strategy takes it in."""
        self.view.advance(manifest)
        messages = label_messages(self.task, manifest.tau, self.view.events(manifest.tau), self.names)
        self.strategy.take_in(self.view if messages is None else WithMessages(self.view, messages))

    def pass_over(self, manifest: LaneManifest) -> int:
        """Take in a snapshot that is neither predicted nor learned; returns its insert events."""
        self.names.meet(manifest.num_nodes)
        events = named(edge_events(self.lane, manifest.tau), self.names)
        if not self.task.sees_labels:
            events = without_labels(events)
        messages = label_messages(self.task, manifest.tau, events, self.names)
        self.strategy.remember(
            manifest.tau, events if messages is None else with_messages(events, messages), len(self.names)
        )
        self.task.remember(manifest.tau, events, len(self.names))
        return int((events.op == 1).sum())

    @property
    def graph_bytes(self) -> int:
        """Bytes of this rank's arrays with adjacency, weights, ids and inputs: the view's, and what the strategy holds of it."""
        return self.view.memory_bytes + sum(self.strategy.held_bytes.values())

    def state(self) -> dict[str, Any]:
        """The content of a checkpoint, on rank 0 that of all ranks, elsewhere meaningless; a collective."""
        return {
            "model": self.model.state_dict(),
            "strategy": self.strategy.gather(self.strategy.state()),
            "names": self.names.state(),
            "rng": torch.get_rng_state(),
            **({"rng_cuda": torch.cuda.get_rng_state()} if self.ranks.device.type == "cuda" else {}),
            **self.task.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state()``, with any number of ranks; generators stay as they are."""
        self.model.load_state_dict(state["model"])
        self.strategy.restore(state["strategy"])
        self.names.restore(state["names"])
        self.task.restore(dict(state))

    def restore_generators(self, state: Mapping[str, Any]) -> None:
        """Put random generators back to a ``state()``."""
        torch.set_rng_state(state["rng"])
        if "rng_cuda" in state and self.ranks.device.type == "cuda":
            torch.cuda.set_rng_state(state["rng_cuda"])

    def close(self) -> None:
        """Release the strategy's threads and other resources."""
        self.strategy.close()

    def _fresh_view(self) -> NamedEvents:
        """The lane from its beginning, as the strategy needs it, with one snapshot more: the predicted one."""
        needs, labels = self.strategy.needs, self.task.sees_labels
        if needs.view == "events":
            return NamedEvents(LogWindow(self.lane), self.names, labels=labels)
        if needs.view == "timeline":
            return TimelineView(self.lane, needs.snapshots, self.config.smoothing, self.names, labels=labels)
        view = WindowView(self.lane, needs.snapshots + 1, own_parts(needs, self.lane.header, self.ranks))
        return NamedGraph(view, self.names, labels=labels)


def join_ranks(config: TrainerConfig) -> Ranks:
    """This process among the ranks that torchrun started, on the configured device, with the configured threads.

    A step of an event model consists of small products: two threads take the time of one and more of the processor.

    Raises:
        Failure: The model is unknown, or there is no such device.
    """
    threads, model = config.threads, MODELS.find(config.model)
    if threads is None and "OMP_NUM_THREADS" not in os.environ and model.kind == "event":
        threads = 1
    return Ranks.from_environment(config.device, threads=threads)


def new_model(config: TrainerConfig, task: Task, lane: LaneHeader | None, seed: int) -> Model:
    """The configured model with freshly drawn weights (torch's global generator), on the host.

    Args:
        config: Model and its parameters.
        task: Has the head.
        lane: Has the widths of features; None: there are no features.
        seed: Of the model's own draws, such as signatures.

    Raises:
        Failure: Unknown model or parameter, or a value out of range.
    """
    features, edge_features = (lane.node_features, lane.edge_features) if lane is not None else (0, 0)
    shape = ModelShape(features, config.window, seed, edge_features, task.head)
    return create_model(config.model, shape, config.model_params)


def own_parts(needs: Needs, lane: LaneHeader, ranks: Ranks) -> list[int] | None:
    """The parts that a rank reads: part k belongs to rank k mod ranks; None: all, discarded edges included."""
    if needs.parts == "all":
        return None
    return [part for part in range(lane.parts) if part % ranks.size == ranks.rank]
