"""Mean λ of a lane: kept by what changed, equal to a plain count, and a key that older manifests lack."""

import math

import numpy as np
import pytest
from delta_stream import stream
from trainer_streams import make_lane

from freshet_graph.schemas.store import QualityRecord
from freshet_graph.stream.partition.interface import Why, create
from freshet_graph.stream.partition.vertex.foreign_rows import ForeignRows
from freshet_graph.stream.store.window.view import WindowView


def plain_mean(graph, home):
    """Mean over nodes with a neighbour of the parts other than their own in which they have one."""
    counts = [
        len({int(home[u]) for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]} - {int(home[v])})
        for v in range(graph.num_nodes)
        if graph.indptr[v] < graph.indptr[v + 1]
    ]
    return sum(counts) / len(counts) if counts else math.nan


@pytest.mark.parametrize("algorithm", ["hash", "metis-layer", "distdy", "byte-lp", "kl"])
@pytest.mark.parametrize("parts", [2, 5])
def test_what_is_kept_by_changes_is_what_a_count_finds(algorithm, parts):
    partitioner, kept, late = create(algorithm, parts=parts), ForeignRows(parts), None
    for at, delta in enumerate(stream()):
        assignment = partitioner.update(delta)
        moved = assignment.node[assignment.why == Why.MOVED]
        if at == 4:  # as after a restart
            late = ForeignRows(parts)
        for each in (kept, late):
            if each is not None:
                each.advance(delta, partitioner.home(), moved)
                assert each.mean == pytest.approx(plain_mean(delta.graph, partitioner.home()), nan_ok=True)


def test_a_vertex_lane_tells_it_in_every_manifest(tmp_path):
    lane = make_lane(tmp_path, algorithm="distdy", parts=3)
    view = WindowView(lane, 1)
    for manifest in lane.manifests:
        view.advance(manifest)
        found = plain_mean(view.csr(manifest.tau), view.owner(manifest.tau))
        assert manifest.quality.foreign_parts == pytest.approx(found)
        assert found > 0


def test_an_edge_lane_and_an_older_manifest_have_none_and_read_as_they_were_written(tmp_path):
    quality = make_lane(tmp_path, algorithm="sep").manifests[-1].quality
    assert quality.foreign_parts is None
    written = quality.model_dump()
    assert "foreign_parts" not in written
    assert QualityRecord.model_validate(written).model_dump() == written
    assert np.isfinite(written["cut"])
