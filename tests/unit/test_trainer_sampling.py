"""Negatives, neighbour samples and signatures: seeded, the same for all, and what they say they are."""

import numpy as np
import pytest

from stream.snapshots.delta import Csr, Rows
from stream.store.log.event_columns import EventColumns
from trainer.data.examples import Sampling, prepare
from trainer.data.history import History, Inserts
from trainer.data.negatives import Draw, destination_pool, historical_pairs, random_destinations
from trainer.data.neighbours import mix64_array, sample_neighbours
from trainer.data.signatures import signatures


def inserts(src: list[int], dst: list[int], start_us: int = 0) -> Inserts:
    t = np.arange(len(src), dtype=np.int64) + start_us
    return Inserts(np.array(src), np.array(dst), t, np.zeros(len(src), np.bool_))


def columns(events: Inserts, late: list[bool] | None = None) -> EventColumns:
    n = len(events)
    return EventColumns(
        op=np.ones(n, np.int8),
        src=events.src,
        dst=events.dst,
        t=events.visible_us,
        visible_t=events.visible_us,
        late=np.array(late or [False] * n),
        weight=np.ones(n, np.float32),
        label=np.zeros(n, np.int32),
        has_label=np.zeros(n, np.bool_),
    )


def test_random_negatives_are_uniform_over_the_pool_without_the_true_destination() -> None:
    pool, true = np.array([5, 7, 9, 11]), np.full(60_000, 7)
    drawn = random_destinations(pool, true, 1, Draw(3, 8, 0))[:, 0]
    counts = {int(node): int((drawn == node).sum()) for node in np.unique(drawn)}
    assert set(counts) == {5, 9, 11}
    assert counts[5] + counts[11] == pytest.approx(30_000, rel=0.05)
    np.testing.assert_array_equal(drawn, random_destinations(pool, true, 1, Draw(3, 8, 0))[:, 0])
    assert (drawn != random_destinations(pool, true, 1, Draw(3, 9, 0))[:, 0]).any()


def test_weighted_negatives_are_as_frequent_as_their_weights_say_and_weights_of_one_change_nothing() -> None:
    pool, true = np.array([5, 7, 9, 11]), np.full(60_000, 3)
    drawn = random_destinations(pool, true, 1, Draw(3, 8, 0), np.array([3, 1, 1, 3]))[:, 0]
    shares = [float((drawn == node).mean()) for node in pool]
    assert shares == pytest.approx([0.375, 0.125, 0.125, 0.375], rel=0.05)
    true = np.full(60_000, 7)
    assert (random_destinations(pool, true, 1, Draw(3, 8, 0), np.array([3, 9, 1, 3])) != 7).all()
    np.testing.assert_array_equal(
        random_destinations(pool, true, 2, Draw(3, 8, 0), np.ones(4, np.int64)),
        random_destinations(pool, true, 2, Draw(3, 8, 0)),
    )


def test_historical_negatives_were_seen_before_and_do_not_happen_now() -> None:
    history = History()
    history.remember(inserts([0, 1, 2, 3], [4, 5, 6, 7]), 8)
    now = inserts([0, 1, 9], [4, 5, 8], 100)
    src, dst, drawable = historical_pairs(history, now, Draw(0, 1, 1))
    assert drawable.any()
    assert {*zip(src[drawable].tolist(), dst[drawable].tolist(), strict=True)} <= {(2, 6), (3, 7)}
    assert not historical_pairs(History(), now, Draw(0, 1, 1))[2].any()


def test_the_pool_holds_this_snapshots_own_new_destinations() -> None:
    history = History()
    history.remember(inserts([0], [4]), 5)
    assert destination_pool(history, inserts([1, 1], [6, 4], 9)).tolist() == [4, 6]


def test_negatives_do_not_depend_on_who_owns_the_events() -> None:
    rng = np.random.default_rng(0)
    events = columns(inserts(rng.integers(0, 20, 300).tolist(), rng.integers(0, 20, 300).tolist()))
    known = np.ones(20, np.bool_)

    def share(owned: np.ndarray) -> dict[str, dict[int, list]]:
        examples = prepare(
            5, events, History(), num_nodes=20, known=known, owned=owned, sampling=Sampling(1, 5, 100)
        )
        found: dict[str, dict[int, list]] = {}
        for name in ("positive", "training", "random", "historical", "candidates"):
            queries = getattr(examples, name)
            asked = (queries.event, queries.src, queries.dst, queries.encounters)
            for event, src, dst, row in zip(*asked, strict=True):
                found.setdefault(name, {}).setdefault(int(event), []).append((src, dst, row.tolist()))
        return found

    whole = share(np.ones(20, np.bool_))
    even, odd = (share(np.arange(20) % 2 == rest) for rest in (0, 1))
    for name, queries in whole.items():
        assert not set(even.get(name, {})) & set(odd.get(name, {}))
        assert {**even.get(name, {}), **odd.get(name, {})} == queries


def test_late_and_deleted_events_are_named_as_excluded() -> None:
    events = columns(inserts([0, 1, 2], [3, 4, 5]), late=[True, False, False])
    events.op[2] = -1
    everyone = np.ones(6, np.bool_)
    examples = prepare(0, events, History(), num_nodes=6, known=everyone, owned=everyone, sampling=Sampling())
    assert examples.excluded == {"late": 1, "delete": 1}
    assert len(examples.inserts) == 2
    assert len(examples.of_events(~examples.inserts.late).positive) == 1


def test_one_destination_only_leaves_nothing_to_tell_apart() -> None:
    everyone = np.ones(3, np.bool_)
    events = columns(inserts([0, 1], [2, 2]))
    examples = prepare(0, events, History(), num_nodes=3, known=everyone, owned=everyone, sampling=Sampling())
    assert len(examples.positive) == len(examples.random) == len(examples.candidates) == 0


def star(degree: int) -> Rows:
    indptr = np.concatenate([[0], np.full(degree + 1, degree)]).astype(np.int64)
    return Csr(indptr, np.arange(1, degree + 1, dtype=np.int32), np.ones(degree, np.float32)).rows


def test_neighbours_are_distinct_and_every_one_is_equally_likely() -> None:
    graph, counts = star(12), np.zeros(13)
    for seed in range(4000):
        indptr, drawn = sample_neighbours(graph, np.array([0]), 5, seed)
        assert indptr.tolist() == [0, 5]
        assert len(set(drawn.tolist())) == 5
        counts[drawn] += 1
    np.testing.assert_allclose(counts[1:], 4000 * 5 / 12, rtol=0.08)


def test_a_sample_depends_on_node_and_seed_alone() -> None:
    rng = np.random.default_rng(0)
    degrees = rng.integers(0, 30, 50)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    graph = Csr(
        indptr, rng.integers(0, 50, indptr[-1]).astype(np.int32), np.ones(indptr[-1], np.float32)
    ).rows
    nodes = np.arange(50)
    starts, drawn = sample_neighbours(graph, nodes, 6, 11)
    for node in nodes.tolist():
        one = sample_neighbours(graph, np.array([node]), 6, 11)[1]
        np.testing.assert_array_equal(one, drawn[starts[node] : starts[node + 1]])
        assert len(one) == min(6, degrees[node])
    all_starts, everything = sample_neighbours(graph, nodes, None, 0)
    np.testing.assert_array_equal(everything, graph.indices)
    np.testing.assert_array_equal(all_starts, indptr)


def plain_mix64(x: int) -> int:
    mask = (1 << 64) - 1
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
    return x ^ (x >> 31)


def plain_sample(neighbours: list[int], node: int, fanout: int, seed: int) -> list[int]:
    """The plain-Python twin: Floyd's algorithm on a SplitMix64 stream of node and seed."""
    golden, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    if len(neighbours) <= fanout:
        return neighbours
    state, chosen = plain_mix64(seed ^ plain_mix64((node + golden) & mask)), set()
    for limit in range(len(neighbours) - fanout, len(neighbours)):
        state = (state + golden) & mask
        draw = plain_mix64(state) % (limit + 1)
        chosen.add(limit if draw in chosen else draw)
    return [neighbours[place] for place in sorted(chosen)]


@pytest.mark.parametrize("seed", [0, 7, (1 << 63) + 5])
def test_samples_equal_their_plain_twin(seed: int) -> None:
    rng = np.random.default_rng(1)
    rows = [sorted(rng.choice(90, rng.integers(0, 60), replace=False).tolist()) for _ in range(40)]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    indices = np.array([node for row in rows for node in row], np.int32)
    graph = Csr(indptr, indices, np.ones(len(indices), np.float32)).rows
    starts, drawn = sample_neighbours(graph, np.arange(40), 7, seed)
    for node, row in enumerate(rows):
        assert drawn[starts[node] : starts[node + 1]].tolist() == plain_sample(row, node, 7, seed)


def test_a_node_beyond_the_graph_has_no_neighbours() -> None:
    indptr, drawn = sample_neighbours(star(3), np.array([0, 99]), 2, 0)
    assert indptr.tolist() == [0, 2, 2]
    assert len(drawn) == 2


def test_signatures_are_nearly_orthogonal_unit_vectors_and_stable() -> None:
    drawn = signatures(np.arange(300), 64, 0)
    np.testing.assert_allclose((drawn**2).sum(axis=1), 1, rtol=1e-5)
    products = drawn @ drawn.T - np.eye(300)
    assert np.abs(products).mean() < 0.15
    np.testing.assert_array_equal(drawn[7:9], signatures(np.array([7, 8]), 64, 0))
    assert (drawn != signatures(np.arange(300), 64, 1)).any()
    assert signatures(np.arange(3), 0, 0).shape == (3, 0)
    nodes = np.array([5, 0, 1 << 40])
    bits = mix64_array(nodes.astype(np.uint64) ^ mix64_array(np.array([3], np.uint64)))
    signs = [[1 if int(row) >> at & 1 else -1 for at in range(9)] for row in bits]
    np.testing.assert_array_equal(signatures(nodes, 9, 2), np.array(signs, np.float32) / np.float32(3))
