"""Pieces of a block that cross ranks while another is computed: what is exposed, by a virtual clock, and that no bit changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from charged import Charged
from rank_equality import begun
from thread_ranks import FakeLink, ThreadRanks, side_by_side
from torch import Tensor
from trainer_sessions import examples_of
from trainer_streams import make_lane, meetings

from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.models.stages import GraphStage
from freshet_graph.trainer.strategies.esdg import shared_layout

GIGABIT = FakeLink(latency_s=1e-4, bytes_per_s=1e9 / 8)
WINDOW = 8


@pytest.fixture
def lane(tmp_path: Path) -> LaneReader:
    events = meetings(nodes=500, a_snapshot=400, snapshots=WINDOW + 1, features=False)
    return make_lane(tmp_path, events=events)


def crossed(lane: LaneReader, model: str, ranks: ThreadRanks, second: float, **params: Any) -> Any:
    """Seconds that rows were waited for in one step, seconds computed, weights; a snapshot in a stage computes ``second``."""
    params = {"blocks": 1, "rows": "all", **params}
    more = {"window": WINDOW, "model_params": {"hidden": 32, "signature": 16}, "strategy_params": params}
    session = begun(lane, "snapshot", model, ranks, torch.float32, 0.01, **more)
    computed = []

    def charge(stage: GraphStage) -> None:
        each = stage.per_snapshot

        def charged(graphs: Any, x: Tensor, weights: Any) -> Tensor:
            computed.append(3 * second * len(graphs))  # the way back takes twice as long
            return Charged.apply(each(graphs, x, weights), ranks, second * len(graphs))

        stage.per_snapshot = charged  # type: ignore[method-assign]

    for manifest in lane.manifests:
        examples = examples_of(session, manifest.sequence)
    for stage in session.model.stages:
        if isinstance(stage, GraphStage):
            charge(stage)
    before = ranks.traffic.copy()
    session.strategy.learn([examples], 0)
    seconds = ranks.traffic.since(before).seconds
    waited = sum(each for purpose, each in seconds.items() if purpose.startswith("rows_to_"))
    return waited, sum(computed), [weight.detach().clone() for weight in session.model.parameters()]


# The first layer of tmgcn has no weights, so nothing is computed there on the way back.
@pytest.mark.parametrize(("model", "exposed_share"), [("cdgcn", 0.35), ("tmgcn", 0.45)])
def test_what_is_computed_meanwhile_hides_most_of_what_crosses(
    model: str, exposed_share: float, lane: LaneReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_layout, "PIECE_CELLS", 1)

    def learned(second: float, *, overlap: bool) -> list[Any]:
        return side_by_side(2, lambda ranks: crossed(lane, model, ranks, second, overlap=overlap), GIGABIT)

    serial_s = max(waited for waited, _, _ in learned(0.0, overlap=False))
    unit = min(computed for _, computed, _ in learned(1.0, overlap=False))
    second = serial_s / unit  # as much is computed as crosses
    serial, overlapped = learned(second, overlap=False), learned(second, overlap=True)
    for (exposed, computed, ours), (waited, _, expected) in zip(overlapped, serial, strict=True):
        assert computed == pytest.approx(serial_s)
        assert exposed <= exposed_share * waited
        assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))
