"""Any number of ranks computes what one rank computes, over drawn streams: every model under every strategy that has ranks."""

import itertools
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from drawn_lanes import TURNOVER, TWO_NODES, lane_of, streams
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rank_equality import STILL, begun, learned, pairs, predicted, require_equal
from thread_ranks import side_by_side
from trainer_sessions import lesson_of

from trainer.ranks import Ranks
from trainer.strategies.snapshots import shared_layout

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])

NOBODY = [[(-1, 0, 0)], [(-1, 0, 0)]]
"""Deletes of what never was: snapshots without a node."""

SIZES = st.sampled_from([2, 3, 4])
"""Numbers of ranks."""


def on_any_number() -> list[Any]:
    """Each strategy and model with one task in one type, by turns; the other three are ``slow``.

    A rank of ``group`` computes what one rank computes, whole groups, so one task and one type say enough of it.
    """
    found = []
    together = [pair for pair in pairs("snapshot") if pair[0] != "hybrid"]  # whose ranks learn apart
    tasks, dtypes = ("link-prediction", "node-regression"), (torch.float64, torch.float32)
    for at, (strategy, model) in enumerate(together):
        for i, j in [(0, 0)] if strategy == "group" else itertools.product((0, 1), (0, 1)):
            slow = strategy != "group" and at % 4 != 2 * i + j
            values = (strategy, model, tasks[i], dtypes[j])
            name = "-".join(map(str, values)).replace("torch.", "")
            found.append(pytest.param(*values, marks=pytest.mark.slow if slow else (), id=name))
    return found


@pytest.mark.parametrize(("strategy", "model", "task", "dtype"), on_any_number())
@settings(max_examples=1)
@given(streams, st.sampled_from(["hash", "kl"]), SIZES)
@example(TWO_NODES, "hash", 4)
@example(TURNOVER, "hash", 3)
@example(NOBODY, "hash", 2)
def test_snapshot_models_learn_and_embed_alike_on_any_number_of_ranks(
    strategy: str, model: str, task: str, dtype: torch.dtype, stream: Any, algorithm: str, size: int
) -> None:
    """Weights, too, in float64; in float32 Adam makes a step of its own of a gradient that is zero but for rounding."""
    rate = 0.01 if dtype == torch.float64 else STILL
    with tempfile.TemporaryDirectory() as folder:
        lane = lane_of(folder, stream, algorithm)

        def work(ranks: Ranks) -> Any:
            return learned(begun(lane, strategy, model, ranks, dtype, rate, task=task))

        one = work(Ranks())
        assert any(" gradient " in key for key in one) or not any(
            " events" in key and value for key, value in one.items()
        )
        for found in side_by_side(size, work):
            require_equal(found, one, dtype)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("cdgcn", torch.float64),
        ("wdgcn", torch.float32),
        ("sage-linear", torch.float64),
        ("gatlstm", torch.float32),
        ("evolvegcn-h", torch.float64),
    ],
)
@settings(max_examples=1)
@given(streams, st.sampled_from([(1, 2), (2, 2)]))
@example(TWO_NODES, (2, 2))
@example(TURNOVER, (1, 2))
@example(TURNOVER, (2, 2))
@example(NOBODY, (1, 2))
def test_groups_of_ranks_that_share_a_snapshot_learn_and_embed_alike(
    model: str, dtype: torch.dtype, stream: Any, mesh: tuple[int, int]
) -> None:
    """Meshes of 1 × 2 and 2 × 2 ranks, whose rows cross in pieces."""
    rate = 0.01 if dtype == torch.float64 else STILL
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(shared_layout, "PIECE_CELLS", 1):
        lane = lane_of(folder, stream, "hash")

        def work(ranks: Ranks, mesh: Sequence[int] = ()) -> Any:
            return learned(
                begun(lane, "snapshot", model, ranks, dtype, rate, strategy_params={"mesh": list(mesh)})
            )

        one = work(Ranks())
        for found in side_by_side(mesh[0] * mesh[1], partial(work, mesh=mesh)):
            require_equal(found, one, dtype)


@DTYPES
@pytest.mark.parametrize(("strategy", "model"), pairs("event"))
@settings(max_examples=1)
@given(streams, st.sampled_from(["hash", "sep"]), SIZES)
@example(TWO_NODES, "hash", 4)
@example(TURNOVER, "sep", 2)
@example(TURNOVER, "sep", 3)
def test_event_models_predict_and_embed_alike_on_any_number_of_ranks(
    strategy: str, model: str, dtype: torch.dtype, stream: Any, algorithm: str, size: int
) -> None:
    """With the same weights and memory; what ranks learn apart is theirs (``test_pac_union``)."""
    with tempfile.TemporaryDirectory() as folder:
        lane = lane_of(folder, stream, algorithm)

        def work(ranks: Ranks) -> Any:
            session, found = begun(lane, strategy, model, ranks, dtype, STILL), {}
            for manifest in lane.manifests:
                found |= predicted(session, manifest.sequence, lesson_of(session, manifest.sequence))
            return found

        one = work(Ranks())
        for found in side_by_side(size, work):
            require_equal(found, one, dtype)
