"""METIS in its own process, and the baselines that are made of it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from edge_events import edge_events

from freshet_graph.stream.partition.interface import PartitionError, create
from freshet_graph.stream.partition.vertex import metis as metis_module
from freshet_graph.stream.partition.vertex.metis import metis, relabel
from freshet_graph.stream.snapshots.adjacency import build_adjacency
from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.stream.snapshots.pairs import pair_keys


def random_graph(nodes, pairs, seed=0):
    ends = np.random.default_rng(seed).integers(nodes, size=(2, pairs))
    keys = np.unique(pair_keys(*ends))
    indptr, indices, _ = build_adjacency(nodes, keys, np.ones(len(keys), np.float32))
    return indptr, indices


def ring_of_cliques(cliques, size):
    """Cliques of ``size`` nodes, each joined to the next by one pair."""
    pairs = [(1, c * size + a, c * size + b) for c in range(cliques) for a in range(size) for b in range(a)]
    return pairs + [(1, c * size, (c + 1) % cliques * size + 1) for c in range(cliques)]


def snapshots(*rows, **graph):
    live = LiveGraph(**graph)
    return [live.apply(tau, edge_events(events)).detached() for tau, events in enumerate(rows)]


def test_cliques_are_not_cut():
    (delta,) = snapshots(ring_of_cliques(8, 5))
    part = metis(delta.graph.indptr, delta.graph.indices, 4, 0)
    assert all(len(set(part[5 * c : 5 * c + 5])) == 1 for c in range(8))
    assert np.bincount(part).tolist() == [10, 10, 10, 10]


def test_weights_of_nodes_and_edges_count():
    """A path 0─1─2─3: the light pair is cut, and a weightless node balances nothing."""
    indptr, indices = np.array([0, 1, 3, 5, 6]), np.array([1, 0, 2, 1, 3, 2])
    part = metis(
        indptr, indices, 2, 0, edge_weights=np.array([1, 1, 9, 9, 9, 9]), node_weights=np.array([3, 1, 1, 1])
    )
    assert part[1] == part[2] == part[3] != part[0]


@pytest.mark.parametrize("parts", [1, 2, 64, 100])
@pytest.mark.parametrize("nodes", [0, 1, 2, 63, 101])
def test_any_number_of_nodes_and_parts(nodes, parts):
    part = metis(np.zeros(nodes + 1, np.int64), np.empty(0, np.int32), parts, 0)
    assert part.shape == (nodes,)
    assert part.dtype == np.int32
    assert ((part >= 0) & (part < parts)).all()


def test_threads_that_ask_at_once_get_what_each_gets_alone():
    """METIS draws from one generator a process: two runs at once would disturb each other."""
    graph = random_graph(3000, 9000)
    alone = {parts: metis(*graph, parts, 7).tolist() for parts in (2, 5, 9)}
    together = {}
    threads = [
        threading.Thread(target=lambda p=parts: together.update({p: metis(*graph, p, 7).tolist()}))
        for parts in alone
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_other_seeds_may_give_other_parts():
    graph = random_graph(500, 2000)
    assert len({tuple(metis(*graph, 4, seed)) for seed in (0, 1, 2**63 - 1)}) > 1


def test_a_process_that_was_killed_is_told_and_the_next_call_starts_another():
    graph = random_graph(100, 400)
    before = metis(*graph, 3, 0)
    os.kill(metis_module._PROCESS._child.pid, signal.SIGKILL)
    with pytest.raises(PartitionError, match="METIS's process ended with status -9 on a graph of 100 nodes"):
        metis(*graph, 3, 0)
    np.testing.assert_array_equal(metis(*graph, 3, 0), before)


def test_an_interrupted_call_leaves_no_answer_for_the_next(monkeypatch):
    graph = random_graph(100, 400)
    before = metis(*graph, 3, 0)

    def interrupted(stream, count):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(metis_module, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            metis(*random_graph(100, 300, seed=1), 3, 0)
    np.testing.assert_array_equal(metis(*graph, 3, 0), before)


def test_listing_the_partitioners_loads_no_library_of_theirs():
    program = (
        "import sys, freshet_graph.stream.cli\nfrom freshet_graph.stream.partition.interface import algorithms\nalgorithms()\n"
        "print([m for m in ('dgl', 'pymetis', 'networkx', 'matplotlib', 'scipy.optimize') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


PROGRAM = """
import os, signal, threading, time
import numpy as np
from freshet_graph.stream.partition.vertex.metis import metis
from freshet_graph.stream.snapshots.adjacency import build_adjacency
from freshet_graph.stream.snapshots.pairs import pair_keys
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
keys = np.unique(pair_keys(*np.random.default_rng(0).integers(20_000, size=(2, 200_000))))
indptr, indices, _ = build_adjacency(20_000, keys, np.ones(len(keys), np.float32))
metis(np.zeros(4, np.int64), np.empty(0, np.int32), 2, 0)
thread = threading.Thread(target=lambda: print(len(metis(indptr, indices, 16, 0)), flush=True))
thread.start()
sent = 0
while not sent or thread.is_alive():
    os.kill(os.getpid(), signal.SIGTERM)
    sent += 1
    time.sleep(0.01)
print("asked to stop" if asked else f"{sent} signals were lost")
"""


def test_sigterm_during_metis_goes_to_the_program_and_nothing_is_printed_for_it():
    """METIS takes SIGTERM over while it runs: in the service's own process that would be a crash.

    It also complains of small graphs on standard output, where a command's JSON goes.
    """
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    assert found.stdout.splitlines() == ["20000", "asked to stop"]
    assert found.stderr == ""


def test_the_process_ends_with_the_one_that_asked():
    program = (
        "from freshet_graph.stream.partition.vertex.metis import metis, _PROCESS\nimport numpy as np, os\n"
        + (
            "metis(np.zeros(9, np.int64), np.empty(0, np.int32), 2, 0)\nprint(_PROCESS._child.pid, flush=True)\nos._exit(1)"
        )
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    pid, deadline = int(found.stdout), time.monotonic() + 30
    while alive(pid):
        assert time.monotonic() < deadline, "METIS's process outlived the one that asked"
        time.sleep(0.02)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_renaming_moves_as_few_nodes_as_possible():
    before = np.array([2, 2, 2, 0, 0, 1, -1], np.int32)
    after = np.array([0, 0, 1, 1, 1, 2, 2], np.int32)
    assert relabel(before, after, 3).tolist() == [2, 2, 0, 0, 0, 1, 1]


def test_the_union_is_partitioned_once_where_the_whole_is_known():
    """Cliques that come one a snapshot, told beforehand: nothing moves, no clique is cut."""
    rows = ring_of_cliques(4, 6)
    deltas = snapshots(rows[:15], rows[15:30], rows[30:45], rows[45:])
    partitioner = create("metis", parts=2)
    src, dst = (np.array([row[end] for row in rows]) for end in (1, 2))
    partitioner.foresee(src, dst, np.zeros(len(src), np.int64), 24)
    for delta in deltas:
        partitioner.update(delta)
    assert partitioner.quality().moved_share == 0
    home = partitioner.home()
    assert all(len(set(home[6 * c : 6 * c + 6])) == 1 for c in range(4))
    assert np.bincount(home).tolist() == [12, 12]


def test_a_lane_of_metis_partitions_again_when_the_graph_has_grown_and_renames_its_parts():
    rows = ring_of_cliques(8, 5)
    partitioner = create("metis", parts=2, growth=2.0)
    homes = []
    for delta in snapshots(rows[:20], rows[20:30], rows[30:]):
        partitioner.update(delta)
        homes.append(partitioner.home().copy())
    assert (homes[1][:10] == homes[0]).all(), "half as many pairs more: nodes stay"
    assert (np.bincount(homes[2]) == 20).all()
    assert (homes[2][:10] == homes[0][:10]).sum() >= 5


def test_metis_layer_can_keep_the_names_of_its_parts():
    deltas = snapshots(ring_of_cliques(8, 5), *[[(1, v, v + 1)] for v in (3, 8, 13, 18)])
    moved = {}
    for keep in (False, True):
        partitioner = create("metis-layer", parts=4, keep_names=keep)
        for delta in deltas:
            partitioner.update(delta)
        moved[keep] = partitioner.quality().moved_share
    assert moved[True] <= moved[False]
    assert moved[True] < 0.5


def test_greedy_store_never_moves_a_node():
    rows = ring_of_cliques(8, 5)
    partitioner = create("greedy-store", parts=2)
    for delta in snapshots(rows[:40], rows[40:], [(-1, 1, 0)]):
        partitioner.update(delta)
    assert partitioner.quality().moved_share == 0
    assert partitioner.quality().node_balance < 1.2
