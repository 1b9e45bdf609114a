"""Ranks of ``pac`` learn together what one rank learns from all of their events; what a rank drops out is its own draw."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from every_strategy import EVENT_MODELS
from pac_rank import STILL, Rank
from rank_equality import PRECISE
from thread_ranks import side_by_side
from trainer_sessions import learn
from trainer_streams import SECOND

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.stream.kernels.mixing import mixed_part
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.trainer.data.examples import Queries
from freshet_graph.trainer.ranks import Ranks

NODES, SNAPSHOTS, BATCH = 90, 4, 8
SHARES = {2: [(8, 8), (6, 3)], 3: [(8, 8, 8), (7, 3, 1)], 4: [(8, 8, 8, 8), (5, 1, 1, 2)]}
"""Events of each rank in the two steps of a snapshot: in the last one they have unequally many."""


def apart(folder: Path, ranks: int) -> Path:
    """A store whose parts never meet, so that no rank lacks anything: pairs of nodes, each node once a moment."""
    part = np.array([mixed_part(0, node, ranks) for node in range(NODES)])
    rng = np.random.default_rng(0)
    rows: list[dict[str, object]] = [
        {"op": 0, "src": node, "t": 0, "features": [0.0]} for node in range(NODES)
    ]
    for tau in range(SNAPSHOTS):
        for moment, counts in enumerate(SHARES[ranks], 1):
            pairs = [
                pair
                for rank, count in enumerate(counts)
                for pair in rng.permutation(np.flatnonzero(part == rank))[: 2 * count].reshape(-1, 2)
            ]
            rows += [
                {"op": 1, "src": int(u), "dst": int(v), "t": tau * SECOND + moment}
                for u, v in rng.permutation(pairs)
            ]
    columns = {
        name: [row.get(name, 1.0 if name == "weight" else None) for row in rows]
        for name in event_schema("int").names
    }
    lane = Lane(name="sep", algorithm="hash", parts=ranks)  # of the name that ``Rank`` reads
    events = pa.table(columns, schema=event_schema("int"))
    build_store(events, folder, interval_us=SECOND, lanes=[lane], node_features=1)
    return folder


def drop(rank: Rank, share: float) -> None:
    for module in rank.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = share


def weights(rank: Rank) -> tuple[np.ndarray, np.ndarray]:
    """All of them in a row, and what the last step had as their gradient, NaN where there was none."""
    made = [weight.detach() for weight in rank.model.parameters()]
    slopes = [weight.grad for weight in rank.model.parameters()]
    none = [
        torch.full_like(weight, torch.nan) if slope is None else slope
        for weight, slope in zip(made, slopes, strict=True)
    ]
    return tuple(torch.cat([each.flatten() for each in row]).double().numpy().copy() for row in (made, none))  # type: ignore[return-value]


def joined(parts: list[Queries]) -> Queries:
    """Queries of all ranks in the order of the log."""
    found = Queries.join(parts)
    order = np.argsort(found.event, kind="stable")
    return Queries(*(getattr(found, name)[order] for name in Queries.__slots__))


@pytest.mark.parametrize("model", EVENT_MODELS)
@pytest.mark.parametrize(
    ("dtype", "ranks"),
    [
        *(pytest.param(torch.float64, ranks, id=f"float64-{ranks}") for ranks in (2, 3, 4)),
        pytest.param(torch.float32, 3, id="float32-3"),
        *(
            pytest.param(torch.float32, ranks, id=f"float32-{ranks}", marks=pytest.mark.slow)
            for ranks in (2, 4)
        ),
    ],
)
def test_several_ranks_make_the_steps_of_one_over_the_union(
    ranks: int, model: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """From the first step on, where nothing is remembered yet and some weights have no gradient on any rank.

    In float32 weights stay: Adam makes a step of its own of a gradient that is zero but for rounding.
    """
    store, precise = apart(tmp_path, ranks), PRECISE[dtype]
    rate = 0.01 if dtype == torch.float64 else STILL.learning_rate
    optimisation = Optimisation(epochs=1, batch_size=BATCH * ranks, learning_rate=rate)

    def begun_by(group: Ranks) -> Rank:
        rank = Rank(store, group, model, "pac", optimisation)
        rank.model.to(dtype)
        rank.strategy.rewind()
        drop(rank, 0.0)
        return rank

    def learned(group: Ranks) -> list[Any]:
        rank, found = begun_by(group), []
        for sequence in range(SNAPSHOTS):
            examples = rank.examples(sequence)
            report = learn(rank.session, examples, 0)
            assert report.discarded == 0
            found.append(
                (examples.learned, examples.training, report.loss or 0.0, report.steps, *weights(rank))
            )
        return found

    everyones = side_by_side(ranks, learned)
    alone = begun_by(Ranks())
    begun, _ = weights(alone)
    for sequence, of_ranks in enumerate(zip(*everyones, strict=True)):
        assert [len(rank[0]) for rank in of_ranks] == [
            sum(counts) for counts in zip(*SHARES[ranks], strict=True)
        ]
        examples = replace(
            alone.examples(sequence),
            learned=joined([rank[0] for rank in of_ranks]),
            training=joined([rank[1] for rank in of_ranks]),
        )
        report = learn(alone.session, examples, 0)
        wanted, slope = weights(alone)
        for _, _, loss, steps, found, gradient in of_ranks:
            assert steps == report.steps == len(SHARES[ranks])
            assert loss == pytest.approx(report.loss, rel=precise)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=precise)
            np.testing.assert_allclose(
                gradient, slope, rtol=0, atol=precise * max(1.0, np.nanmax(np.abs(slope)))
            )
    assert dtype == torch.float32 or np.abs(wanted - begun).max() > 0.01


def test_what_another_rank_than_the_first_drops_out_is_drawn_from_seed_snapshot_and_epoch(
    tmp_path: Path,
) -> None:
    """It has no generator in the checkpoint: whoever goes on there must draw what would have been drawn."""
    store = apart(tmp_path, 2)

    def losses(start: int, dropped: float) -> list[float | None]:
        def learned(group: Ranks) -> list[float | None]:
            rank = Rank(store, group, "tgn-history", "pac", STILL)
            drop(rank, dropped if group.rank == 1 else 0.0)
            examples = rank.examples(0)
            group.any()  # threads share torch's generator: both have drawn their weights, rank 0 draws no more
            if group.rank == 1:
                torch.manual_seed(start)
            return [learn(rank.session, examples, epoch).loss for epoch in (0, 1, 0)]

        return side_by_side(2, learned)[0]

    first, other, again = losses(1, 0.5)
    assert [first, other, again] == losses(2, 0.5)
    assert first == again != other
    assert len(set(losses(1, 0.0))) == 1
