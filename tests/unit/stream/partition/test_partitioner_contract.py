"""What every registered partitioner must hold, whatever its algorithm."""

import dataclasses
import math
import re

import numpy as np
import pyarrow as pa
import pytest
from delta_stream import snapshot, stream

from freshet_graph.stream.partition import interface
from freshet_graph.stream.partition.interface import (
    OnlinePartitioner,
    PartitionError,
    Why,
    algorithms,
    create,
    create_for_lane,
    register,
    sees_training_part,
    training_until_us,
)
from freshet_graph.stream.partition.vertex.hash import Hash
from freshet_graph.stream.snapshots.graph import LiveGraph

# Other tests register rough partitioners of their own in the same process.
ALGORITHMS = sorted(
    name for name, found in algorithms().items() if found.__module__.startswith("freshet_graph.stream.")
)
VERTEX = [name for name in ALGORITHMS if algorithms()[name].kind == "vertex"]
EDGE = [name for name in ALGORITHMS if algorithms()[name].kind == "edge"]
PARTS = [1, 2, 5, 64, 100]


def begun(algorithm, **options):
    """A partitioner before its first snapshot; if it sees a training part, that is ``stream()``, whatever follows."""
    partitioner = create(algorithm, **options)
    if sees_training_part(algorithm):
        inserts = [np.stack([d.src, d.dst, d.t])[:, d.op > 0] for d in stream()]
        partitioner.foresee(*np.concatenate(inserts, axis=1), stream()[-1].num_nodes)
    return partitioner


def same_assignment(a, b):
    for field in dataclasses.fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        assert (x is None) == (y is None)
        if x is not None:
            np.testing.assert_array_equal(x, y, err_msg=field.name)
            assert x.dtype == y.dtype


def same_quality(a, b):
    for field in dataclasses.fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        assert x == y or (math.isnan(x) and math.isnan(y)), field.name


class Placements:
    """What a reader of the assignments alone knows: homes and sets of parts."""

    def __init__(self):
        self.home, self.parts = {}, {}

    def follow(self, assignment):
        columns = (assignment.node.tolist(), assignment.part.tolist(), assignment.why.tolist())
        for node, part, why in zip(*columns, strict=True):
            match Why(why):
                case Why.GONE:
                    assert part == -1
                    assert node in self.home
                    del self.home[node], self.parts[node]
                case Why.NEW:
                    assert node not in self.home
                    self.home[node], self.parts[node] = part, self.parts.get(node, set()) | {part}
                case Why.MOVED:
                    assert self.home[node] != part
                    self.home[node] = part
                    self.parts[node].add(part)
                case Why.REPLICATED:
                    assert part not in self.parts.get(node, set())
                    self.parts.setdefault(node, set()).add(part)
                case Why.DEMOTED:
                    self.parts[node].remove(part)


@pytest.fixture(params=ALGORITHMS)
def algorithm(request):
    return request.param


@pytest.fixture(params=PARTS)
def parts(request):
    return request.param


def test_it_satisfies_the_protocol(algorithm):
    partitioner = create(algorithm, parts=3)
    assert isinstance(partitioner, OnlinePartitioner)
    assert partitioner.name == algorithm
    assert partitioner.kind in ("vertex", "edge")
    assert partitioner.parts == 3


def test_assignments_tell_every_placement(algorithm, parts):
    """Following the assignments gives the homes that the partitioner reports, in [0, K)."""
    partitioner = begun(algorithm, parts=parts, seed=3)
    known = Placements()
    for delta in stream():
        assignment = partitioner.update(delta)
        known.follow(assignment)
        assert (np.lexsort((assignment.part, assignment.node)) == np.arange(len(assignment.node))).all()
        home = partitioner.home()
        assert home.shape == (delta.num_nodes,)
        assert home.dtype == np.int32
        assert {v: int(home[v]) for v in np.flatnonzero(home >= 0).tolist()} == known.home
        assert all(0 <= p < parts for ps in known.parts.values() for p in ps)
        assert all(home[v] in known.parts[v] for v in known.parts)
        assert (home[delta.live] >= 0).all()


@pytest.mark.parametrize("algorithm", VERTEX)
def test_vertex_partitioners_own_exactly_the_live_nodes(algorithm, parts):
    partitioner = begun(algorithm, parts=parts)
    left = 0
    for delta in stream():
        before = partitioner.home().copy()
        assignment = partitioner.update(delta)
        np.testing.assert_array_equal(np.flatnonzero(partitioner.home() >= 0), delta.live)
        gone = np.setdiff1d(np.flatnonzero(before >= 0), delta.live)
        np.testing.assert_array_equal(assignment.node[assignment.why == Why.GONE], gone)
        assert not np.isin(assignment.why, (Why.REPLICATED, Why.DEMOTED)).any()
        assert assignment.event_part is None
        left += len(gone)
    assert left, "the stream must have nodes that leave"


@pytest.mark.parametrize("algorithm", EDGE)
def test_edge_partitioners_give_every_insert_a_part_or_discard_it_and_place_its_ends(algorithm, parts):
    partitioner = begun(algorithm, parts=parts)
    known = Placements()
    for delta in stream():
        assignment = partitioner.update(delta)
        known.follow(assignment)
        event_part = assignment.event_part
        assert event_part.dtype == np.int32
        assert event_part.shape == delta.op.shape
        assert (event_part[delta.op < 0] == -1).all()
        assert ((event_part >= -1) & (event_part < parts)).all()
        for src, dst, part in zip(delta.src.tolist(), delta.dst.tolist(), event_part.tolist(), strict=True):
            if part >= 0:
                assert part in known.parts[src] & known.parts[dst]
        loops = (delta.src == delta.dst) & (delta.op > 0)
        assert (event_part[loops] >= 0).all(), "self-loops are never cut"


def test_the_same_seed_gives_the_same_assignments(algorithm):
    first, second = (begun(algorithm, parts=4, seed=9) for _ in range(2))
    for delta in stream():
        same_assignment(first.update(delta), second.update(delta))
    same_quality(first.quality(), second.quality())


@pytest.mark.parametrize("restart", [0, 1, 5, 11])
def test_a_restart_from_the_state_changes_nothing_that_follows(algorithm, restart):
    whole, stopped = begun(algorithm, parts=4, seed=1), begun(algorithm, parts=4, seed=1)
    for i, delta in enumerate(stream()):
        if i == restart:
            sink = pa.BufferOutputStream()
            state = stopped.state()
            with pa.ipc.new_file(sink, state.schema) as writer:
                writer.write_table(state)
            stopped = create(algorithm, parts=4, seed=1)
            stopped.restore(pa.ipc.open_file(sink.getvalue()).read_all())
        same_assignment(whole.update(delta), stopped.update(delta))
        np.testing.assert_array_equal(whole.home(), stopped.home())
        same_quality(whole.quality(), stopped.quality())
    assert whole.state().equals(stopped.state())


@pytest.mark.parametrize(("name", "lacks"), [("distdy", "swept_since"), ("load-aware", "part_load")])
def test_a_state_of_a_former_release_is_refused_with_what_to_do(name, lacks):
    state = create(name, parts=4).state()
    with pytest.raises(PartitionError, match=f"it has no {lacks}. Remove the lane's folder"):
        create(name, parts=4).restore(state.drop_columns([lacks]))


def test_asking_for_quality_or_state_changes_nothing(algorithm):
    asked, silent = begun(algorithm, parts=3), begun(algorithm, parts=3)
    for delta in stream():
        same_assignment(asked.update(delta), silent.update(delta))
        asked.quality()
        asked.state()
    same_quality(asked.quality(), silent.quality())


def test_the_delta_is_left_as_it_is(algorithm):
    partitioner = begun(algorithm, parts=3)
    for delta in stream(snapshots=4):
        arrays = (delta.src, delta.dst, delta.op, delta.live, delta.touched, delta.graph.indptr)
        before = [array.copy() for array in arrays]
        for array in arrays:
            array.setflags(write=False)
        partitioner.update(delta)
        assert all(np.array_equal(array, copy) for array, copy in zip(arrays, before, strict=True))


def test_one_part_cuts_and_moves_nothing(algorithm):
    partitioner = begun(algorithm, parts=1)
    for delta in stream():
        assignment = partitioner.update(delta)
        assert (assignment.part[assignment.why != Why.GONE] == 0).all()
    quality = partitioner.quality()
    assert quality.cut == 0
    assert quality.moved_share == 0
    assert quality.replication_factor == quality.training_replication_factor == 1
    assert quality.shared_share == 0
    assert quality.node_balance == quality.edge_balance == 1


ODD = {
    "no events at all": [],
    "node events only": [(0, 0, -1), (0, 3, -1)],
    "one node with a self-loop": [(1, 0, 0)],
    "self-loops only": [(1, 2, 2), (1, 0, 0), (1, 2, 2)],
    "one pair many times": [(1, 0, 1), (1, 1, 0), (1, 0, 1)],
    "a pair that came and went": [(1, 0, 1), (-1, 0, 1)],
    "a delete of what was never there": [(-1, 0, 1)],
}


@pytest.mark.parametrize(
    ("events", "parts"),
    [
        pytest.param(events, parts, id=f"{name}-{parts}")
        for name, events in ODD.items()
        for parts in (PARTS if name == "one pair many times" else (2, 100))
    ],
)
def test_small_and_odd_snapshots(algorithm, events, parts):
    graph = LiveGraph(node_features=4)
    partitioner = begun(algorithm, parts=parts)
    for tau, rows in enumerate([events, [], [(1, 4, 5), (1, 5, 5)], [(-1, 4, 5)], [(-1, 5, 5)]]):
        delta = graph.apply(tau, snapshot(rows))
        assignment = partitioner.update(delta)
        home = partitioner.home()
        assert (home[delta.live] >= 0).all()
        if partitioner.kind == "edge":
            assert len(assignment.event_part) == len(delta.op)
    quality = partitioner.quality()
    for field in dataclasses.fields(quality):
        value = getattr(quality, field.name)
        assert math.isnan(value) or value >= 0, field.name


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(PartitionError, match=r"unknown partitioner 'metsi'; expected one of .*hash"):
        create("metsi", parts=2)


def test_a_lane_needs_the_end_of_the_training_part_or_a_partitioner_without_one():
    with pytest.raises(
        PartitionError,
        match=r"sep-two-pass needs its training part .* training_until .* of .*, sep, sep-cent",
    ):
        create_for_lane("sep-two-pass", {}, parts=2, seed=0, window=4)
    until = create_for_lane("sep-two-pass", {"training_until": 1.5}, parts=2, seed=0, window=4)
    assert training_until_us(until) == 1_500_000
    assert create_for_lane("sep-centrality", {"hubs": 0.1}, parts=2, seed=0, window=4).hubs == 0.1


def test_no_parts_are_refused(algorithm):
    with pytest.raises(PartitionError, match=f"{algorithm} needs at least one part, found parts = 0"):
        create(algorithm, parts=0)


def test_more_parts_than_any_table_of_parts_has_room_for_are_refused(algorithm):
    with pytest.raises(PartitionError, match=f"{algorithm} takes at most 4096 parts, found 4097"):
        create(algorithm, parts=4097)


def test_an_unknown_parameter_is_refused(algorithm):
    with pytest.raises(PartitionError, match="colour"):
        create(algorithm, parts=2, colour="red")


@pytest.mark.parametrize("name", ["parts", "seed", "window"])
def test_an_option_among_the_parameters_is_refused(name):
    """As in a lane with ``params: {parts: 7}``; ``create`` refuses it, whatever the algorithm."""
    with pytest.raises(PartitionError, match=f"{name} is not a parameter of sep but a separate option"):
        create("sep", {name: 7}, parts=2, seed=0, window=4)


@pytest.mark.parametrize("seed", [-1, 2**63, 10**23])
def test_a_seed_that_kernels_cannot_hold_is_refused(seed):
    """By ``create``, whatever the algorithm; each takes the largest, in the next test."""
    with pytest.raises(PartitionError, match=f"takes a seed from 0 to {2**63 - 1}, found {seed}"):
        create("ldg", parts=2, seed=seed)


def test_the_largest_seed_is_taken(algorithm):
    partitioner = begun(algorithm, parts=3, seed=2**63 - 1)
    for delta in stream(snapshots=3):
        partitioner.update(delta)
    assert set(partitioner.home().tolist()) <= {-1, 0, 1, 2}


@pytest.mark.parametrize(
    ("name", "params", "sentence"),
    [
        ("sep", {"x": 1}, "params of sep: unknown key x. Expected one of hubs, time_constant, past_weight"),
        ("sep", {"hub": 1}, "params of sep: unknown key hub. Did you mean hubs?"),
        ("powergraph-greedy", {"x": 1}, "params of powergraph-greedy: unknown key x. It has none"),
        ("sep", {"hubs": "x"}, "params of sep: hubs: must be a number, found 'x'"),
        ("sep", {"hubs": True}, "params of sep: hubs: must be a number, found True"),
        ("sep", {"hubs": math.nan}, "hubs: must be a finite number, found nan"),
        ("distdy", {"fanout": 2.5}, "fanout: must be a whole number, found 2.5"),
        ("distdy", {"fanout": "3"}, "fanout: must be a whole number, found '3'"),
        ("distdy", {"capacity": [2**70]}, "capacity: must be"),
        ("distdy", {"reward": 3}, "reward: must be 'stay' or 'paper', found 3"),
    ],
)
def test_wrong_parameters_are_told_in_a_sentence(name, params, sentence):
    with pytest.raises(PartitionError, match=re.escape(sentence)):
        create(name, params, parts=2)


def test_each_parameter_is_described_and_whole_numbers_are_those_that_kernels_can_hold(algorithm):
    for name, field in algorithms()[algorithm].Options.model_fields.items():
        assert field.description, name
        if "int" in str(field.annotation):
            with pytest.raises(PartitionError, match=f"params of {algorithm}: {name}: must be"):
                create(algorithm, {name: 2**63}, parts=2)


def test_a_registered_class_is_found_by_its_name(monkeypatch):
    monkeypatch.setattr(interface.PARTITIONERS, "registered", dict(interface.PARTITIONERS.registered))

    @register
    class Mine(Hash):
        name = "mine"

    assert "mine" in algorithms()
    assert create("mine", parts=2).name == "mine"
