"""Temporal walk sketches against their definition."""

import numpy as np
import pytest
from happenings import NODES, happenings

from freshet_graph.trainer.data.walks import SCALES_S, STEPS, WIDTH, WalkSketches, walk_width


class SlowWalks:
    """The sketches' definition, with vectors of one node after the other."""

    def __init__(self, signature: np.ndarray) -> None:
        self.p = signature
        self.h = np.zeros((len(signature), len(SCALES_S), STEPS + 1, signature.shape[1]))
        self.h[:, :, 0] = signature[:, None]
        self.t = np.zeros(len(signature))

    def now(self, node: int, t: float) -> np.ndarray:
        h = self.h[node].copy()
        for s, scale in enumerate(SCALES_S):
            for length in range(1, STEPS + 1):
                h[s, length] *= np.exp(-length * (t - self.t[node]) / scale)
        return h

    def add(self, u: int, v: int, t: float) -> None:
        ours, theirs = self.now(u, t), self.now(v, t)
        for node, own, other in ((u, ours, theirs), (v, theirs, ours)):
            self.h[node, :, 1:] = own[:, 1:] + other[:, :-1]
            self.t[node] = t

    def features(self, u: int, v: int, t: float) -> list[float]:
        ours, theirs, found = self.now(u, t), self.now(v, t), []
        for s in range(len(SCALES_S)):
            pairs = [(ours[s, a], theirs[s, b]) for a in range(STEPS + 1) for b in range(STEPS + 1) if a + b]
            for a in range(1, STEPS + 1):
                pairs += [(ours[s, a], ours[s, a]), (theirs[s, a], theirs[s, a])]
            found += [float(np.log1p(max(x @ y, 0.0))) for x, y in pairs]
        return found


def test_walk_sketches_are_their_definition_and_count_walks() -> None:
    columns = happenings(50)
    sketches = WalkSketches(3)
    empty = sketches.features(np.arange(NODES), np.arange(NODES), np.zeros(NODES, np.int64))
    assert empty.shape == (NODES, walk_width()) and (empty == 0).sum() > 0
    sketches.reserve(NODES)
    # the signatures, read off the first step of fresh nodes
    probe = WalkSketches(3)
    probe.reserve(2 * NODES)
    for node in range(NODES):
        probe.add(np.array([node + NODES]), np.array([node]), np.array([0]))
    signature = probe.sketch[NODES : 2 * NODES, 0, 0].astype(np.float64)
    assert set(np.abs(signature).ravel().tolist()) == {float(np.float32(1 / np.sqrt(WIDTH)))}
    slow = SlowWalks(signature)
    sketches.add(columns.src, columns.dst, columns.t)
    for i in range(50):
        slow.add(int(columns.src[i]), int(columns.dst[i]), columns.t[i] / 1e6)
    now = columns.t[-1] + 60_000_000
    u, v = (grid.ravel() for grid in np.meshgrid(np.arange(NODES), np.arange(NODES)))
    ours = sketches.features(u, v, np.full(len(u), now))
    theirs = [slow.features(a, b, now / 1e6) for a, b in zip(u.tolist(), v.tolist(), strict=True)]
    np.testing.assert_allclose(ours, theirs, atol=2e-4)


def test_pairs_asked_together_get_what_each_gets_alone() -> None:
    columns, sketches = happenings(50), WalkSketches(3)
    sketches.reserve(NODES)
    sketches.add(columns.src, columns.dst, columns.t)
    last = int(columns.t[-1])
    src, dst = np.array([1, 1, 1, 2, 2, 1, 1]), np.array([2, 3, 4, 3, 5, 3, 3])
    at = last + np.array([0, 0, 60_000_000, 60_000_000, 60_000_000, 60_000_000, 90_000_000])
    rows = src, np.where(dst == 5, -1, dst)  # a node without a row has no walks
    together = sketches.features(src, dst, at, rows)
    for i in range(len(src)):
        one = slice(i, i + 1)
        alone = sketches.features(src[one], dst[one], at[one], (rows[0][one], rows[1][one]))
        np.testing.assert_array_equal(together[one], alone)
    assert (together[:3] != together[0]).any(axis=1).tolist() == [False, True, True]
    back_to_v = [9, 11]  # behind eight that join the two, by turns with those back to u
    assert (sketches.sketch[-1] != 0).any() and (together[4, back_to_v] == 0).all()
    assert (sketches.features(src, dst, at)[4, back_to_v] != 0).all()


@pytest.mark.parametrize("absent", [-1, NODES, 1 << 40])
def test_a_node_without_a_row_is_one_without_walks(absent: int) -> None:
    columns, sketches = happenings(50), WalkSketches(3)
    sketches.reserve(NODES)
    sketches.add(columns.src, columns.dst, columns.t)
    src, dst, at = np.array([1, 2, 1]), np.array([2, 5, 5]), np.full(3, columns.t[-1])
    src_rows, dst_rows = (np.where(np.isin(nodes, (1, 5)), absent, nodes) for nodes in (src, dst))
    found = sketches.features(src, dst, at, (src_rows, dst_rows))
    sketches.sketch[[1, 5]] = 0
    np.testing.assert_array_equal(found, sketches.features(src, dst, at))


def test_products_of_sketches_count_walks_in_expectation() -> None:
    """0 meets 2 and 3, 1 meets 2, all just now: one walk of two steps joins 0 and 1, one step 0 and 2."""
    counted = []
    for seed in range(200):
        sketches = WalkSketches(seed)
        sketches.reserve(4)
        sketches.add(np.array([0, 0, 1]), np.array([2, 3, 2]), np.array([10, 10, 10]))
        counted.append(np.expm1(sketches.features(np.array([0, 0]), np.array([1, 2]), np.array([10, 10]))))
    mean = np.mean(counted, axis=0)
    places = {(a, b): i for i, (a, b) in enumerate((a, b) for a in range(3) for b in range(3) if a + b)}
    assert mean[0, places[1, 1]] == pytest.approx(1, abs=0.1)
    assert mean[1, places[1, 0]] == pytest.approx(1, abs=0.1)
    assert mean[0, places[1, 0]] == pytest.approx(0, abs=0.1)  # noise that is cut at 0


def test_sketches_that_several_ranks_have_parts_of_are_those_of_one() -> None:
    columns, sketches = happenings(50), WalkSketches(3)
    sketches.reserve(NODES)
    sketches.add(columns.src, columns.dst, columns.t)
    rows, mine = np.arange(NODES), np.arange(NODES) % 2 == 0
    tables = [sketches.packed(np.where(here, rows, -1)) for here in (mine, ~mine)]
    together = sketches.unpacked(tables[0] + tables[1])
    np.testing.assert_array_equal(together.sketch, sketches.sketch)
    np.testing.assert_array_equal(together.time_us, sketches.time_us)
    (missing,) = sketches.unpacked(sketches.packed(np.array([-1]))).sketch
    assert (missing == 0).all()
