"""Any number of ranks computes what one rank computes, over drawn streams: every model under every strategy that has ranks."""

import itertools
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from drawn_lanes import TURNOVER, TWO_NODES, lane_of, streams
from exploring import examples_only
from hypothesis import example, given
from hypothesis import strategies as st
from labels_of_nodes import labels_file
from rank_equality import STILL, begun, learned, pairs, predicted, require_equal
from thread_ranks import side_by_side
from trainer_sessions import examples_of

from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.esdg import shared_layout

DTYPES = torch.float64, torch.float32

NOBODY = [[(-1, 0, 0)], [(-1, 0, 0)]]
"""Deletes of what never was: snapshots without a node."""

SIZES = st.sampled_from([2, 3, 4])
"""Numbers of ranks."""


def by_turns(found: list[tuple[Any, ...]], fast: Callable[[int], bool]) -> list[Any]:
    """Parameters of tests, of which those at some places are not ``slow``."""
    return [
        pytest.param(
            *values,
            marks=() if fast(at) else pytest.mark.slow,
            id="-".join(map(str, values)).replace("torch.", ""),
        )
        for at, values in enumerate(found)
    ]


def on_any_number() -> list[Any]:
    """Each strategy and model with one task in one type, by turns; the other five are ``slow``.

    A rank of ``group`` computes what one rank computes, whole groups, so one task and one type say enough of it, and every
    third model.
    """
    together = [pair for pair in pairs("snapshot") if pair[0] != "hybrid"]  # whose ranks learn apart
    ways = list(itertools.product(("link-prediction", "node-regression", "node-classification"), DTYPES))
    shared = [pair for pair in together if pair[0] != "group"]
    grouped = [(*pair, *ways[0]) for pair in together if pair[0] == "group"]
    return [
        *by_turns([(*pair, *way) for pair in shared for way in ways], lambda at: at // 6 % 6 == at % 6),
        *by_turns(grouped, lambda at: at % 3 == 0),
    ]


@pytest.mark.parametrize(("strategy", "model", "task", "dtype"), on_any_number())
@examples_only
@given(streams, st.sampled_from(["hash", "kl"]), SIZES)
@example(TWO_NODES, "hash", 4)
@example(TURNOVER, "hash", 3)
@example(NOBODY, "hash", 2)
def test_snapshot_models_learn_and_embed_alike_on_any_number_of_ranks(
    strategy: str, model: str, task: str, dtype: torch.dtype, stream: Any, algorithm: str, size: int
) -> None:
    """Weights, too, in float64; in float32 Adam makes a step of its own of a gradient that is zero but for rounding."""
    rate = 0.01 if dtype == torch.float64 else STILL
    params = {"labels": labels_file()} if task == "node-classification" else {}
    with tempfile.TemporaryDirectory() as folder:
        lane = lane_of(folder, stream, algorithm)

        def work(ranks: Ranks) -> Any:
            return learned(begun(lane, strategy, model, ranks, dtype, rate, task=task, task_params=params))

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
@examples_only
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


@pytest.mark.parametrize(
    ("strategy", "model", "dtype"),
    by_turns(
        [(*pair, dtype) for pair in pairs("event") for dtype in DTYPES], lambda at: at // 2 % 2 == at % 2
    ),
)
@examples_only
@given(streams, st.sampled_from(["hash", "sep"]), SIZES)
@example(TWO_NODES, "hash", 4)
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
                found |= predicted(session, manifest.sequence, examples_of(session, manifest.sequence))
            return found

        one = work(Ranks())
        for found in side_by_side(size, work):
            require_equal(found, one, dtype)
