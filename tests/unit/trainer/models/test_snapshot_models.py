"""Every snapshot model beside the equations of its paper, and what all of them must keep."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_tgcn import Dense, config_for, lane_of, shaken
from hypothesis import given, settings
from hypothesis import strategies as st
from model_oracles import (
    ArrayLayout,
    Drawn,
    csr_of,
    drawn,
    embedded,
    oracle,
    summary,
    timelines,
)

from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.models.evolvegcn import SummarisedConvolution
from freshet_graph.trainer.models.interface import MODELS, ModelShape, SnapshotModel, create_model
from freshet_graph.trainer.models.stages import GraphStage
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.nn.graph import CSRGraph
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.strategies.snapshots.vertex import VertexStrategy

pytestmark = pytest.mark.usefixtures("double")
SIGNATURE = 2
INPUTS = SIGNATURE + 3
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("sage-linear", {"fanouts": [None, None]}),
    ("tgcn", {}),
    ("tgcn", {"gates": "shared"}),
    ("tmgcn", {}),
    ("tmgcn", {"bandwidth": 2}),
    ("tmgcn", {"bandwidth": 3, "normalise": "before"}),
    ("cdgcn", {}),
    ("cdgcn", {"skip": "inputs"}),
    ("wdgcn", {}),
    ("wdgcn", {"residual": True}),
    ("evolvegcn-o", {}),
    ("evolvegcn-o", {"cell": "lstm"}),
    ("evolvegcn-o", {"residual": True}),
    ("evolvegcn-h", {}),
    ("evolvegcn-h", {"residual": True}),
    ("evolvegcn-h", {"cell": "lstm"}),
]
NAMED = [" ".join([name, *map(str, options.values())]) for name, options in OPTIONS]
every_model = pytest.mark.parametrize(("name", "options"), OPTIONS, ids=NAMED)
in_blocks = pytest.mark.parametrize(
    ("name", "options"),
    [each for each in OPTIONS if each[1].get("normalise") != "before"],
    ids=[name for name in NAMED if "before" not in name],
)


def made(name: str, options: dict[str, Any], hidden: int = 3, window: int = 4) -> SnapshotModel:
    """A model none of whose weights is zero."""
    torch.manual_seed(hidden)
    params = {"hidden": hidden, "signature": SIGNATURE, **options}
    model = create_model(name, ModelShape(0, window), params)
    assert isinstance(model, SnapshotModel)
    assert model.inputs == INPUTS
    shaken(model)
    return model.eval()


@every_model
@settings(max_examples=25)
@given(data=st.data())
def test_a_model_is_the_equations_of_its_paper(
    name: str, options: dict[str, Any], data: st.DataObject
) -> None:
    timeline = data.draw(timelines(INPUTS))
    model = made(name, options, hidden=data.draw(st.sampled_from([3, 7])))
    expected = oracle(model, timeline, **options)
    np.testing.assert_allclose(embedded(model, timeline), expected, rtol=0, atol=1e-10)
    newest = embedded(model, timeline, last=True)
    np.testing.assert_allclose(newest, expected[-1:], rtol=0, atol=1e-10)


@in_blocks
@settings(max_examples=25)
@given(data=st.data())
def test_blocks_with_carries_give_the_rows_of_the_whole(
    name: str, options: dict[str, Any], data: st.DataObject
) -> None:
    timeline, model = data.draw(timelines(INPUTS)), made(name, options)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(timeline.a) - 1)), max_size=4)))
    if len(timeline.a) == 1:
        cuts = []
    whole = embedded(model, timeline)
    np.testing.assert_allclose(embedded(model, timeline, *cuts), whole, rtol=0, atol=1e-12)


@every_model
def test_the_future_never_changes_the_past(name: str, options: dict[str, Any]) -> None:
    model, timeline = made(name, options), drawn(4, 6, 9, INPUTS, share=0.5)
    rng = np.random.default_rng(0)
    whole = embedded(model, timeline)
    for until in range(1, 6):
        other = drawn(50 + until, 6, 9, INPUTS, share=0.5)
        a, x = timeline.a.copy(), timeline.x.copy()
        a[until:], x[until:] = other.a[until:], rng.normal(size=x[until:].shape)
        changed = embedded(model, Drawn(a, x, timeline.there))
        np.testing.assert_array_equal(changed[:until], whole[:until])
        assert (changed[until:] != whole[until:]).any()


@every_model
@settings(max_examples=5)
@given(data=st.data())
def test_renumbering_nodes_permutes_embeddings(
    name: str, options: dict[str, Any], data: st.DataObject
) -> None:
    timeline, model = data.draw(timelines(INPUTS)), made(name, options)
    order = np.array(data.draw(st.permutations(range(timeline.x.shape[1]))))
    found = embedded(model, timeline.renumbered(order))
    np.testing.assert_allclose(found, embedded(model, timeline)[:, order], rtol=0, atol=1e-10)


@every_model
def test_a_node_has_no_row_before_it_comes(name: str, options: dict[str, Any]) -> None:
    model, timeline = made(name, options), drawn(2, 5, 8, INPUTS, share=0.5)
    found = embedded(model, timeline)
    if name == "sage-linear":  # its last stage has a bias
        found = found - model.stages[-1].bias.detach().numpy()
    assert not timeline.there.all()
    assert not found[~timeline.there].any()
    assert found[timeline.there].any()


@every_model
def test_what_a_node_without_edges_becomes_needs_nobody_else(name: str, options: dict[str, Any]) -> None:
    model, timeline = made(name, options, hidden=6), drawn(3, 1, 7, INPUTS, share=0.5)
    (graph,), width = model.operators([csr_of(timeline.a[0], weighted=False)]), INPUTS
    for stage in model.stages:
        if isinstance(stage, GraphStage):
            x = torch.randn(7, width)
            width = model.width
            told = [stage.summary(graph, x)] if stage.summarises else None
            (own,), _ = stage.weights(1, None, told)
            alone, among = stage.alone(x[-1:], own), stage(graph, x, x, own)[-1:]
            torch.testing.assert_close(alone, among, rtol=0, atol=1e-14)


@every_model
def test_no_backward_pass_over_symmetric_graphs_builds_a_transpose(
    name: str, options: dict[str, Any]
) -> None:
    model, before = made(name, options).train(), CSRGraph.transposes_built
    timeline = drawn(5, 4, 9, INPUTS, weighted=True, share=0.5)
    rows, _ = unroll(model.stages, ArrayLayout(timeline, model))
    rows.square().sum().backward()
    gradients = [weights.grad for stage in model.stages for weights in stage.parameters()]
    assert all(gradient is not None and gradient.any() for gradient in gradients)
    assert CSRGraph.transposes_built == before
    directed = csr_of(timeline.a[0], weighted=True)
    directed.symmetric = False
    assert directed.transpose is directed.transpose
    assert CSRGraph.transposes_built == before + 1


@every_model
def test_whole_gives_what_the_equations_give_over_all_ids_of_a_lane(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lane_of(tmp_path)
    params = {"hidden": 3, "signature": 4, **options}
    session = Session(config_for(tmp_path, model=name, model_params=params), lane, Ranks())
    model, dense, window = session.model, Dense(lane), session.model.window
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda inputs: encode(inputs).double())
    shaken(model)
    for at, manifest in enumerate(lane.manifests):
        session.advance(manifest)
        first = max(0, at + 1 - window)
        timeline = Drawn(
            np.stack(
                [(a.numpy() != 0) & ~np.eye(len(a), dtype=bool) for a in dense.adjacency[first : at + 1]]
            ).astype(float),
            np.stack([rows.double().numpy() for rows in dense.rows[first : at + 1]]),
            np.stack([there.numpy() for there in dense.there[first : at + 1]]),
        )
        asked = np.arange(session.view.num_nodes)
        found = session.strategy.embeddings(asked)
        expected = oracle(model, timeline, **options)[-1][asked]
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-10)


def test_evolving_weights_begin_anew_with_each_window() -> None:
    for name in ("evolvegcn-o", "evolvegcn-h"):
        model, timeline = made(name, {}), drawn(1, 3, 6, INPUTS, share=0.5)
        first = embedded(model, timeline)
        np.testing.assert_array_equal(embedded(model, timeline), first)
        again = Drawn(*(np.concatenate([each, each]) for each in (timeline.a, timeline.x, timeline.there)))
        assert not np.allclose(embedded(model, again)[3:], first)


def test_only_live_nodes_are_summarised_and_the_last_again_where_they_are_few() -> None:
    stage = SummarisedConvolution(INPUTS, 4, "gru")
    timeline = drawn(0, 1, 8, INPUTS)
    a, x = np.zeros((8, 8)), timeline.x[0].copy()
    p = stage.scorer.detach().numpy()
    x[5] = 100 * p  # best of all, but without an edge
    x[[1, 3]] = [3 * p, 2 * p]
    a[1, 3] = a[3, 1] = 1
    rows = torch.from_numpy(x).requires_grad_()
    found = stage.summary(csr_of(a, weighted=False), rows)
    y = x @ p / np.linalg.norm(p)
    expected = [x[node] * np.tanh(y[node]) for node in (1, 3, 3, 3)]
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-14)
    np.testing.assert_allclose(summary(p, a, x, 4), expected, atol=1e-14)
    found.sum().backward()
    assert rows.grad is not None
    assert rows.grad.any(dim=1).nonzero().squeeze(1).tolist() == [1, 3]
    assert stage.scorer.grad is not None
    assert not stage.summary(csr_of(np.zeros((8, 8)), weighted=False), rows).any()


def test_only_the_newest_snapshot_is_convolved_where_no_other_is_needed() -> None:
    timeline = drawn(6, 5, 8, INPUTS, share=0.5)
    for name, expected in (("evolvegcn-o", [1, 1]), ("evolvegcn-h", [5, 1]), ("wdgcn", [5, 5])):
        model, passed = made(name, {}), Counter[int]()
        stages = [stage for stage in model.stages if isinstance(stage, GraphStage)]
        for at, stage in enumerate(stages):
            stage.register_forward_hook(lambda *_, at=at, passed=passed: passed.update([at]))
        embedded(model, timeline, last=True)
        assert [passed[at] for at in range(len(stages))] == expected


@pytest.mark.parametrize(
    ("name", "params", "sentence"),
    [
        ("evolvegcn-o", {"cell": "rnn"}, "cell: must be 'gru' or 'lstm', found 'rnn'"),
        ("cdgcn", {"skip": "none"}, "skip: must be 'aggregated' or 'inputs', found 'none'"),
        ("tmgcn", {"normalise": "twice"}, "normalise: must be 'after' or 'before', found 'twice'"),
        ("tmgcn", {"bandwidth": 0}, "bandwidth: must be at least 1, found 0"),
        ("tgcn", {"gates": "none"}, "gates: must be 'each' or 'shared', found 'none'"),
        ("wdgcn", {"layers": 0}, "layers: must be at least 1, found 0"),
    ],
)
def test_options_out_of_range_are_named(name: str, params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Failure, match=sentence):
        create_model(name, ModelShape(0, 2), params)


def test_a_strategy_that_cuts_snapshots_refuses_weights_that_evolve_by_all_rows() -> None:
    refused = VertexStrategy.refuses(made("evolvegcn-h", {}), None, 1)
    assert refused is not None
    assert "evolvegcn-h evolve by the best of all its rows" in refused


def test_every_snapshot_model_has_an_oracle_or_a_test_of_its_own() -> None:
    elsewhere = {"gatlstm", "dysat", "dcrnn"}
    snapshot = {name for name, found in MODELS.all().items() if getattr(found, "kind", "") == "snapshot"}
    assert snapshot - elsewhere == {name for name, _ in OPTIONS}
