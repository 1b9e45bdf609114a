"""The interface of tasks, and the registry that finds them by name."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol

from numpy.typing import NDArray
from torch import Tensor, nn

from freshet_graph.schemas.section import Section
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int64
from freshet_graph.stream.registry import Registry, require_members
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.data.examples import Queries, Share
from freshet_graph.trainer.data.history import History, Inserts
from freshet_graph.trainer.data.node_names import NodeNames
from freshet_graph.trainer.data.views import EventsView
from freshet_graph.trainer.labels.report import LabelReport
from freshet_graph.trainer.models.interface import Head, Model
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import Figures
from freshet_graph.trainer.scoring.predictions import Predictions

Subject = Literal["pairs", "nodes"]
Reduction = Literal["sum", "mean"]


class QueryBatch(Protocol):
    """Questions about nodes, each as of one moment."""

    @property
    def ends(self) -> tuple[Int64, ...]:
        """Nodes whose embeddings the answers need: one int64 (Q,) for each embedding that the head takes."""
        ...

    def read(self, head: nn.Module, rows: Sequence[Tensor]) -> Tensor:
        """Answers (Q,) of a head, or (Q, K) if an answer is K numbers, from the embeddings (Q, width) of each of ``ends``."""
        ...


class SnapshotExamples(Protocol):
    """One snapshot of a task, as one rank learns and predicts it.

    Its *items* are events, or nodes.

    Attributes:
        queries_per_example: Questions per item that is learned.
    """

    queries_per_example: ClassVar[int]

    @property
    def tau(self) -> int:
        """Snapshot."""
        ...

    @property
    def sequence(self) -> int:
        """The snapshot's number in its log, which draws of the strategies follow from."""
        ...

    @property
    def excluded(self) -> dict[str, int]:
        """Events without figures, by reason, of all ranks."""
        ...

    @property
    def items(self) -> int:
        """Number of items, of all ranks."""
        ...

    def __len__(self) -> int:
        """Items that this rank learns."""
        ...

    @property
    def times(self) -> Int64:
        """Time of each of ``items``, int64 (items,), microseconds."""
        ...

    def of_events(self, chosen: Bool) -> "SnapshotExamples":
        """The same examples with some of ``items`` only; ``chosen`` is bool (items,)."""
        ...

    def part(self, chosen: Int64) -> tuple[QueryBatch, Float32]:
        """Questions of some of this rank's items, and their true answers, float32 (len(chosen) · each,).

        The first question of every item comes first, then every second one. ``chosen`` is int64, ascending, below ``len(self)``.
        """
        ...


class Shares(Protocol):
    """Divides a snapshot among ranks."""

    def owned(self, num_nodes: int) -> Bool:
        """See ``Strategy.owned``."""
        ...

    def share(self, tau: int, inserts: Inserts) -> Share | None:
        """See ``Strategy.share``."""
        ...


class QueryAnswering(Shares, Protocol):
    """The part of a strategy that a task uses."""

    def answer(self, model: Any, queries: Sequence[Any]) -> list[Float32]:
        """See ``Strategy.answer``."""
        ...

    def embed_sources(self, model: Any, queries: Queries) -> Tensor:
        """See ``Strategy.embed_sources``."""
        ...


def is_split(task: type[Any]) -> bool:
    """Whether ``evaluate`` splits a task's links, by ``task.offline``; otherwise the task has its examples as in ``run``."""
    return hasattr(task, "offline")


def classifies(task: type[Any]) -> bool:
    """Whether ``evaluate`` judges labels of events by embeddings, instead of the task's answers."""
    return getattr(task, "classifies", False)


def label_messages(task: Any, tau: int, events: EventColumns, names: NodeNames) -> EventColumns | None:
    """Labels that become visible in a snapshot, as messages to the memories of event models; None: there are none.

    A task with labels that come later has a method of this name, which is called before the snapshot is taken in anywhere
    except by ``names``, the numbers of nodes.
    """
    if not hasattr(task, "label_messages"):
        return None
    made: EventColumns | None = task.label_messages(tau, events, names)
    return made


def label_report(evaluation: Any) -> LabelReport | None:
    """How labels arrived in a snapshot, of tasks with labels that come later, whose evaluation has it as ``report``."""
    report: LabelReport | None = getattr(evaluation, "report", None)
    return report


def learns_all(strategy: Shares) -> bool:
    """Whether under a strategy every rank learns from the items of all ranks, instead of those that it owns."""
    return getattr(strategy, "learns_all", False)


class Evaluation(Protocol):
    """Predictions of a model and of baselines, side by side."""

    @property
    def scored(self) -> int:
        """Items that were predicted."""
        ...

    @property
    def links(self) -> Predictions | None:
        """Predictions of the snapshot's events, for exports; None: the task makes none."""
        ...

    @property
    def cautions(self) -> list[dict[str, Any]]:
        """Figures that too few items decide, as in docs/training.md."""
        ...

    def figures(self) -> Figures:
        """All figures."""
        ...

    def rows(self) -> dict[str, NDArray[Any]]:
        """Columns of scores, a row per item of one snapshot, named by ``event``, the place among its inserts, or by ``node``."""
        ...


class Task(Protocol):
    """A question put to models, and the cost of wrong answers.

    Attributes:
        name: Key in the registry and in configurations.
        Options: Its own parameters, a section with defaults, descriptions and bounds.
        subject: Subject of its questions.
        query_class: Class of its questions, a dataclass of arrays.
        head: Of snapshot models.
        sees_labels: Whether labels of events are inputs of models; no if the task asks for them.
        selection_metric: The metric by which validation picks an epoch and drift is watched, and 1 if more of it is better,
            −1 if less.
        baseline: Scorer that learns nothing and that a model has to beat.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Section]]
    subject: ClassVar[Subject]
    query_class: ClassVar[type[Any]]
    head: Head
    sees_labels: ClassVar[bool]
    selection_metric: ClassVar[tuple[str, int]]
    baseline: ClassVar[str]

    def __init__(self, config: TrainerConfig, lane: LaneReader, options: Any) -> None: ...

    def rewind(self, model: Model) -> None:
        """Forget the stream: the next snapshot is the first, as in a new epoch. The session calls it before anything else.

        ``model`` is the one that is predicted: the baselines beside it know as much as it does.
        """
        ...

    def examples(self, view: EventsView, strategy: QueryAnswering, *, epoch: int = 0) -> SnapshotExamples:
        """This rank's share of a view's newest snapshot, from the knowledge before it; then the snapshot is known.

        Args:
            view: Advanced.
            strategy: Knows this rank's share.
            epoch: Distinguishes draws of repeated passes.
        """
        ...

    def remember(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        """Take in a snapshot that is left out."""
        ...

    @property
    def history(self) -> History | None:
        """All events before the next snapshot, which forgets with the strategy's memory; None: it keeps none."""
        ...

    def forgot(self, nodes: int, kept_nodes: Int64 | None = None) -> None:
        """Some nodes may have been forgotten; ``nodes`` are left, numbered in their order.

        ``kept_nodes`` has the former numbers of those that are left, ascending; None: all are.
        """
        ...

    def loss(self, answers: Tensor, truth: Tensor, reduction: Reduction = "sum") -> Tensor:
        """Sum or mean of the losses of answers (Q,) or (Q, K), a scalar."""
        ...

    def evaluate(
        self, strategy: QueryAnswering, model: Model, untrained: Model | None, examples: Any, ranks: Ranks
    ) -> Evaluation | None:
        """Predict this rank's examples before they are learned, beside the baselines; a collective.

        ``untrained`` is the same model with random weights; None: only the model is judged.

        Returns:
            On rank 0 the predictions of all ranks, elsewhere None.
        """
        ...

    def join(self, parts: Sequence[Any]) -> Evaluation:
        """Predictions of consecutive snapshots as one."""
        ...

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        ...


def _require_task(candidate: Any) -> None:
    """Check that an entry point leads to a task's class."""
    require_members(candidate, Task, "task", made=frozenset({"history"}))


TASKS: Registry[Any] = Registry(
    "task",
    "task_params",
    "freshet.tasks",
    (
        "freshet_graph.trainer.tasks.link_prediction",
        "freshet_graph.trainer.tasks.edge_classification",
        "freshet_graph.trainer.tasks.node_classification",
        "freshet_graph.trainer.tasks.node_regression",
    ),
    error=Failure,
    check=_require_task,
)


def create_task(config: TrainerConfig, lane: LaneReader) -> Task:
    """The configured task on a lane.

    Raises:
        Failure: Unknown task or parameter, a value out of range, or the lane lacks what the task asks about.
    """
    made: Task = TASKS.find(config.task)(config, lane, TASKS.options(config.task, config.task_params))
    return made
