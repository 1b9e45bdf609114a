"""Lanes over real graphs: any window equals what the file says, and additive storage saves what the paper promises."""

from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from lane_stream import lane
from real_data import real_file

from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.verify.store import verify
from freshet_graph.stream.store.window.view import WindowView

pytestmark = pytest.mark.real
DAY_S = 86_400


@cache
def in_order(path: Path) -> list[tuple[int, int, int, int, int]]:
    """A file's rows by time, equal times in file order: t, place, src, dst, op."""
    table = pq.read_table(path)
    rows = zip(
        table["t"].to_pylist(),
        range(len(table)),
        table["src"].to_pylist(),
        table["dst"].to_pylist(),
        table["op"].to_pylist() if "op" in table.column_names else [1] * len(table),
        strict=True,
    )
    return sorted(rows)


@cache
def live_after(path: Path, tau: int) -> set[tuple[int, int]]:
    """Live pairs at the end of day τ, straight from the file, undirected and without self-loops."""
    live: set[tuple[int, int]] = set()
    for t, _, src, dst, op in in_order(path):
        if t // DAY_S <= tau:
            (live.add if op > 0 else live.discard)((src, dst))
    return {(min(pair), max(pair)) for pair in live if pair[0] != pair[1]}


@pytest.mark.parametrize("name", [pytest.param("as733_deltas", marks=pytest.mark.slow), "collegemsg"])
def test_windows_over_a_real_graph_equal_the_file(name, tmp_path):
    path = real_file(f"{name}.parquet")
    lanes = [lane(algorithm, parts=4, base_every=64) for algorithm in ("distdy", "sep")]
    build_store(path, tmp_path, interval_us=DAY_S * 1_000_000, lanes=lanes)
    for each in lanes:
        reader = LaneReader(tmp_path, each.name)
        ids = np.asarray(reader.log.external_ids())
        view = WindowView(reader, 4)
        for sequence in (0, 1, 70, len(reader.manifests) - 1):
            view.advance(reader.manifests[sequence])
            for tau in view.taus:
                csr = view.csr(tau)
                row = np.repeat(np.arange(csr.num_nodes), np.diff(csr.indptr))
                ends = np.sort(np.stack([ids[row], ids[csr.indices]], axis=1), axis=1)
                assert {(int(a), int(b)) for a, b in ends} == live_after(path, tau)
    assert verify(tmp_path).problems == []
    figures = inspect(tmp_path)["lanes"]
    assert all(figures[each.name]["saving"] > 0.7 for each in lanes)  # the paper: 70 % to 92.2 %
