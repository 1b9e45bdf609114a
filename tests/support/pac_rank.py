"""Ranks of ``pac`` over one small lane."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from trainer_sessions import examples_of, session_on, small_params
from trainer_streams import SECOND, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.data.examples import Examples
from freshet_graph.trainer.models.interface import MODELS
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.tasks.link_prediction import predict

EVENTS = meetings(snapshots=4, a_snapshot=100, nodes=40, features=False)

STILL = Optimisation(epochs=1, batch_size=8, learning_rate=1e-30)
"""Weights stay as they are, so memory can be compared."""

DRAWING = threading.Lock()
"""Threads share torch's generator."""


def make_store(folder: Path) -> Path:
    lane = Lane(name="sep", algorithm="sep", parts=5, params={"hubs": 0.2})
    build_store(EVENTS, folder, interval_us=SECOND, lanes=[lane])
    return folder


class Rank:
    """One rank's way over the lane."""

    def __init__(
        self,
        store: Path,
        ranks: Ranks,
        name: str,
        strategy: str,
        optimisation: Optimisation,
        keys: Mapping[str, Any] | None = None,
        **params: object,
    ) -> None:
        self.ranks = ranks
        lane = LaneReader(store, "sep")
        known = MODELS.find(name).Options.model_fields
        sizes = small_params(name) | {"memory": 6, "time_width": 5, "dropout": 0.0}
        sizes = {key: value for key, value in sizes.items() if key in known}
        keys = keys or {}
        sizes |= keys.get("model_params", {})
        more = {"window": 1, **keys, "model_params": sizes, "strategy_params": params}
        with DRAWING:
            self.session = session_on(lane, strategy, name, ranks, optimisation, **more)
        self.model, self.strategy = self.session.model.double(), self.session.strategy
        self.strategy.rewind()  # memory is of the weights' precision

    def examples(self, sequence: int) -> Examples:
        return examples_of(self.session, sequence)

    def leave_out(self, sequence: int) -> None:
        """As a trainer that lags behind does."""
        self.session.pass_over(self.session.lane.manifests[sequence])

    def memory(self) -> dict[int, tuple[np.ndarray, int, int]]:
        """Mail and times of the nodes that this rank owns."""
        mailbox = self.strategy.memories.trained.stream.mailbox
        rows = mailbox.rows(
            np.flatnonzero(mailbox.event_us >= 0)[mailbox.rows_of(np.flatnonzero(mailbox.event_us >= 0)) >= 0]
        )
        return {
            int(node): (rows.mail[at].numpy(), int(rows.event_us[at]), int(rows.former_us[at]))
            for at, node in enumerate(rows.nodes)
        }


def scores_of(rank: Rank, sequence: int) -> np.ndarray:
    examples = rank.examples(sequence)
    predictions = predict(rank.strategy, rank.model, None, examples, rank.ranks)
    return predictions.positive[:, 0] if predictions is not None else np.empty(0)
