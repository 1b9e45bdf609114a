"""``snapshot`` beside ``whole``: blocks, ranks, and which rows cross change nothing of what is learned."""

import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_equality import begun, predicted, require_equal
from structlog.testing import capture_logs
from thread_ranks import side_by_side
from trainer_sessions import examples_of
from trainer_streams import make_lane, meetings

from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.session.snapshot_trainer import ExampleWindow
from freshet_graph.trainer.strategies.esdg import shared_layout
from freshet_graph.trainer.strategies.interface import STRATEGIES

WINDOW = 5
PREDICTED = (2, 6)
"""Snapshots before which all is predicted and embedded: a horizon that is not yet full, and a full one."""
MODELS = ["sage-linear", "tmgcn", "cdgcn", "wdgcn", "evolvegcn-o", "evolvegcn-h", "tgcn", "gatlstm", "dysat"]


@pytest.fixture(scope="module")
def lane() -> Iterator[LaneReader]:
    """Nodes come in every snapshot, pairs end, and some nodes have no edge any more."""
    with tempfile.TemporaryDirectory() as folder:
        yield make_lane(Path(folder), events=meetings(nodes=40, a_snapshot=9, snapshots=7, features=False))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows cross, they cross in pieces."""
    monkeypatch.setattr(shared_layout, "PIECE_CELLS", 1)


def begun_with(
    lane: LaneReader,
    model: str,
    ranks: Ranks,
    strategy: str = "snapshot",
    task: str = "link-prediction",
    **params: Any,
) -> Session:
    more = {"window": WINDOW, "strategy_params": params, "task": task}
    return begun(lane, strategy, model, ranks, torch.float64, 0.01, **more)


def all_learned(session: Session) -> dict[str, Any]:
    """What is predicted, learned and embedded, snapshot by snapshot, with the examples that the strategy wants."""
    found: dict[str, Any] = {}
    book = ExampleWindow(session.task, session.strategy.needs.example_sets)
    for manifest in session.lane.manifests:
        examples = examples_of(session, manifest.sequence)
        if manifest.sequence in PREDICTED:
            found |= predicted(session, manifest.sequence, examples)
        book.open(examples)
        report = session.strategy.learn(book.with_newest(examples), 0)
        found[f"{manifest.tau} events"] = torch.tensor(report.events)
        found[f"{manifest.tau} loss"] = torch.tensor(np.nan if report.loss is None else report.loss).double()
        for name, weight in session.model.named_parameters():
            found[f"{manifest.tau} weight {name}"] = weight.detach().clone()
            if weight.grad is not None:
                found[f"{manifest.tau} gradient {name}"] = weight.grad.clone()
    return found


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("model", "supervise"),
    [
        ("cdgcn", "newest"), ("tmgcn", "horizon"), ("dysat", "newest"), ("evolvegcn-h", "horizon"),
        pytest.param("cdgcn", "horizon", marks=SLOW), pytest.param("tmgcn", "newest", marks=SLOW),
        pytest.param("dysat", "horizon", marks=SLOW), pytest.param("evolvegcn-h", "newest", marks=SLOW),
    ],
)  # fmt: skip
def test_one_rank_and_one_block_learn_what_whole_learns_to_the_bit(
    model: str, supervise: str, lane: LaneReader
) -> None:
    one = all_learned(begun_with(lane, model, Ranks(), "whole", supervise=supervise))
    found = all_learned(begun_with(lane, model, Ranks(), supervise=supervise))
    assert found.keys() == one.keys()
    assert all(torch.equal(found[key].nan_to_num(), one[key].nan_to_num()) for key in one)


LAYOUTS = [
    ("newest", "link-prediction", 1, 2, "active", []),
    ("newest", "link-prediction", 2, 4, "active", []),
    ("newest", "link-prediction", 4, 8, "all", []),
    ("newest", "link-prediction", 2, 1, "active", [1, 2]),
    ("horizon", "node-regression", 2, 1, "all", []),
    ("horizon", "node-regression", 3, 2, "active", []),
    ("horizon", "node-regression", 4, 2, "active", [2, 2]),
]
"""Supervision, task, ranks, blocks, rows, mesh: in some, blocks have fewer snapshots than there are ranks."""

ALL_CASES = [
    pytest.param(model, *layout, marks=() if (first + second) % len(LAYOUTS) == 0 else SLOW)
    for first, model in enumerate(MODELS)
    for second, layout in enumerate(LAYOUTS)
]
"""Each model in one layout, each layout with a model; the others are slow tests."""


@pytest.mark.parametrize(("model", "supervise", "task", "size", "blocks", "rows", "mesh"), ALL_CASES)
def test_blocks_and_ranks_learn_what_whole_learns(
    model: str,
    supervise: str,
    task: str,
    size: int,
    blocks: int,
    rows: str,
    mesh: list[int],
    lane: LaneReader,
) -> None:
    """Five snapshots on up to four ranks, or in a mesh of them."""
    one = all_learned(begun_with(lane, model, Ranks(), "whole", task, supervise=supervise))
    assert any(" gradient " in key for key in one)
    params = {"supervise": supervise, "blocks": blocks, "rows": rows, "mesh": mesh}
    for found in side_by_side(
        size, lambda ranks: all_learned(begun_with(lane, model, ranks, task=task, **params))
    ):
        require_equal(found, one, torch.float64)


@pytest.mark.parametrize("model", ["cdgcn", pytest.param("sage-linear", marks=SLOW)])
def test_overlap_changes_no_bit(model: str, lane: LaneReader) -> None:
    """Three ranks with up to two snapshots each, and half of the nodes in a mesh."""
    for size, mesh in ((3, []), (4, [2, 2])):
        on, off = (
            side_by_side(
                size,
                lambda ranks, more=more: all_learned(begun_with(lane, model, ranks, blocks=1, **more)),
            )
            for more in ({"overlap": True, "mesh": mesh}, {"overlap": False, "mesh": mesh})
        )
        for ours, theirs in zip(on, off, strict=True):
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[key].nan_to_num(), theirs[key].nan_to_num()) for key in ours)


@pytest.mark.parametrize("model", ["cdgcn", pytest.param("evolvegcn-h", marks=SLOW)])
def test_pairs_of_every_snapshot_are_learned_alike_on_any_number_of_ranks(
    model: str, lane: LaneReader
) -> None:
    """Questions about snapshots that several ranks hold, whose ends several ranks hold."""
    one = all_learned(begun_with(lane, model, Ranks(), "whole", supervise="horizon"))
    for size, mesh in ((2, []), (3, []), (4, [2, 2])):
        for found in side_by_side(
            size,
            lambda ranks, mesh=mesh: all_learned(
                begun_with(lane, model, ranks, supervise="horizon", blocks=2, mesh=mesh)
            ),
        ):
            require_equal(found, one, torch.float64)


def test_smoothed_snapshots_and_operators_of_several_are_shared_alike(lane: LaneReader) -> None:
    for more in (
        {"smoothing": {"kind": "m-product", "length": 3}},
        {"model_params": {"normalise": "before"}},
    ):

        def session(ranks: Ranks, strategy: str, more: Any = more, **params: Any) -> Session:
            return begun(
                lane,
                strategy,
                "tmgcn",
                ranks,
                torch.float64,
                0.01,
                window=WINDOW,
                strategy_params=params,
                **more,
            )

        one = all_learned(session(Ranks(), "whole"))
        for found in side_by_side(
            3, lambda ranks, session=session: all_learned(session(ranks, "snapshot", blocks=2))
        ):
            require_equal(found, one, torch.float64)


WIDTHS = {"cdgcn": [11 + 8, 8, 8 + 8], "tmgcn": [11, 8, 8], "tgcn": [11, 8, 8]}
"""Of the rows that cross: to nodes after each graph stage, to snapshots between the layers (no features)."""


@pytest.mark.parametrize("model", WIDTHS)
@pytest.mark.parametrize("rows", ["all", "active"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_bytes_that_cross_are_those_of_the_formula(
    model: str, rows: str, blocks: int, lane: LaneReader
) -> None:
    """Every cell whose snapshot and node are on two ranks crosses once per redistribution and pass."""
    size = 3

    def work(ranks: Ranks) -> Any:
        session = begun_with(lane, model, ranks, blocks=blocks, rows=rows)
        for manifest in lane.manifests:
            examples = examples_of(session, manifest.sequence)
            before = ranks.traffic.copy()
            session.strategy.learn([examples], 0)
        asked = np.unique(np.concatenate(examples.part(np.arange(len(examples)))[0].ends))
        horizon = session.strategy.timeline.before_newest(asked)
        return (
            ranks.traffic.since(before).sent_bytes,
            horizon,
            [session.view.pairs(tau) for tau in horizon.taus],
        )

    found = side_by_side(size, work)
    (_, horizon, graphs), cells = found[0], [0] * blocks
    assert (len(horizon.taus), len(horizon.nodes) % size != 0) == (WINDOW, True)
    for block in range(blocks):
        first, end = WINDOW * block // blocks, WINDOW * (block + 1) // blocks
        for part in range(size):
            for at in range(first + (end - first) * part // size, first + (end - first) * (part + 1) // size):
                src, dst, _ = graphs[at]
                linked = {
                    int(u) for u, v in [*zip(src, dst, strict=True), *zip(dst, src, strict=True)] if u != v
                }
                cells[block] += sum(
                    number % size != part and (rows == "all" or node in linked)
                    for number, node in enumerate(horizon.nodes.tolist())
                )
    assert rows == "all" or 0 < sum(cells) < WINDOW * len(horizon.nodes) * (size - 1) / size
    passes = 2 * sum(cells) - cells[-1]  # the last block needs no rerun
    first_conv, back, last_conv = WIDTHS[model]
    sent = {purpose: sum(each[0][purpose] for each in found) for purpose in found[0][0]}
    assert sent["rows_to_nodes"] == 8 * passes * (first_conv + last_conv)
    assert sent["rows_to_snapshots"] == 8 * passes * back
    learned = last_conv + (first_conv if model == "cdgcn" else 0)  # no weight comes before the other rows
    assert sent["rows_to_nodes_gradients"] == 8 * sum(cells) * learned
    assert sent["rows_to_snapshots_gradients"] == 8 * sum(cells) * back


@pytest.mark.parametrize(
    ("model", "purposes"),
    [("evolvegcn-o", {"gradients"}), ("evolvegcn-h", {"gradients", "summaries", "summaries_gradients"})],
)
def test_evolving_weights_need_no_rows_of_others(model: str, purposes: set[str], lane: LaneReader) -> None:
    def work(ranks: Ranks) -> Any:
        session, begin = begun_with(lane, model, ranks, supervise="horizon", blocks=2), None
        book = ExampleWindow(session.task, session.strategy.needs.example_sets)
        for manifest in lane.manifests:
            examples = examples_of(session, manifest.sequence)
            book.open(examples)
            begin = ranks.traffic.copy()
            session.strategy.learn(book.with_newest(examples), 0)
        return {purpose for purpose, sent in ranks.traffic.since(begin).sent_bytes.items() if sent}

    for found in side_by_side(2, work):
        assert found - {"control"} == purposes


@pytest.mark.parametrize("transfer", ["auto", "derived"])
def test_the_rerun_sends_the_device_no_graph_again(transfer: str, lane: LaneReader) -> None:
    """It goes back by differences that the device has (``derived``), or the device has the graphs."""

    def sent(ranks: Ranks, blocks: int) -> list[int]:
        session, found = begun_with(lane, "cdgcn", ranks, blocks=blocks, transfer=transfer), []
        for manifest in lane.manifests:
            examples = examples_of(session, manifest.sequence)
            for epoch in range(2):
                report = session.strategy.learn([examples], epoch)
                graphs = [
                    number
                    for (kind, _), number in report.figures["transfer_bytes"].items()
                    if kind != "features"
                ]
                found.append(sum(graphs))
        return found

    one_pass = sent(Ranks(), 1)
    assert sum(one_pass) > 0
    assert sent(Ranks(), 5) == one_pass
    for of_rank in side_by_side(2, lambda ranks: sent(ranks, 2)):
        assert not any(of_rank[1::2]), "a second pass, with its rerun, sends nothing"


@pytest.mark.parametrize("size", [1, 2])
def test_a_layout_is_gone_when_nobody_has_it(size: int, lane: LaneReader) -> None:
    """Without waiting for the collector of cycles: it holds all that a block saves."""

    def work(ranks: Ranks) -> bool:
        session = begun_with(lane, "cdgcn", ranks, blocks=1)
        for manifest in lane.manifests:
            session.advance(manifest)
        passed = session.strategy.blocks(
            session.model, session.strategy.timeline.before_newest(np.empty(0, np.int64)), last=False
        )
        layout = passed.layout(passed.ranges[0])
        rows, carry = unroll(passed.stages, layout)
        then = weakref.ref(layout)
        del layout, rows, carry
        return then() is None

    assert all(side_by_side(size, work))


def test_states_that_are_convolved_are_refused_with_the_remedy(lane: LaneReader) -> None:
    with pytest.raises(
        Failure, match=r"strategy snapshot .* stage DiffusionCell of dcrnn .* Choose strategy whole"
    ):
        begun_with(lane, "dcrnn", Ranks())


def test_more_ranks_than_snapshots_are_told(lane: LaneReader) -> None:
    with capture_logs() as lines:
        begun_with(lane, "tgcn", Ranks(0, WINDOW + 2))
    (told,) = [line for line in lines if line["log_level"] == "warning"]
    assert "strategy snapshot has more ranks than its horizon has snapshots" in told["event"]
    assert (told["ranks"], told["most"]) == (7, 5)


def test_a_mesh_that_cannot_be_is_refused(lane: LaneReader) -> None:
    with pytest.raises(
        Failure, match=r"mesh \[2, 2\] is of 4 ranks, found 3. Start as many, or leave mesh out"
    ):
        begun_with(lane, "tgcn", Ranks(0, 3), mesh=[2, 2])

    def work(ranks: Ranks) -> None:
        more = {
            "window": WINDOW,
            "model_params": {"normalise": "before"},
            "strategy_params": {"mesh": [1, 2]},
        }
        begun(lane, "snapshot", "tmgcn", ranks, torch.float64, 0.01, **more)

    with pytest.raises(Failure, match=r"operators of tmgcn combine several snapshots. Leave mesh out"):
        side_by_side(2, work)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"blocks": 0}, "blocks: must be at least 1 or 'auto', found 0"),
        ({"blocks": "few"}, "blocks: must be a whole number or 'auto', found 'few'"),
        ({"rows": "some"}, "rows: must be 'all' or 'active', found 'some'"),
        ({"mesh": [2]}, "mesh: must be two numbers, found \\[2\\]"),
        ({"mesh": [2, 0]}, "mesh\\[1\\]: must be at least 1, found 0"),
        ({"mesh": 4}, "mesh: must be a list, found 4"),
        ({"device_budget_mib": 0}, "device_budget_mib: must be above 0, found 0"),
    ],
)
def test_options_that_cannot_be_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(Failure, match=f"strategy_params of snapshot: {message}"):
        STRATEGIES.options("snapshot", params)
