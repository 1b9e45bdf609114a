"""A lane is a pure function of the log: restarts and lost states leave no trace in its files."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lane_scripts import LANES, scratch_store, streams, table_of
from oracle_lane import INTERVAL_US, F

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.store import LogHeader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.writer import LogWriter


@pytest.mark.parametrize("algorithm", LANES)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    snapshots=streams(), stops=st.lists(st.integers(0, 9), max_size=4), edge_life=st.sampled_from([None, 2])
)
def test_a_lane_is_a_pure_function_of_the_log(algorithm, snapshots, stops, edge_life):
    """Restarts, and states lost or damaged, leave no trace in the files."""
    header = LogHeader(graph="g", interval_us=INTERVAL_US, ids="int", node_features=F, segments=2)
    lanes = {
        name: Lane(name=name, algorithm=algorithm, parts=3, edge_life=edge_life, base_every=3)
        for name in ("whole", "stopped")
    }
    with scratch_store() as store:
        with LogWriter.open(store, header) as log:
            log.commit(seal=[(tau, table_of(rows)) for tau, rows in snapshots])
        with LaneWriter(store, lanes["whole"]) as writer:
            assert writer.catch_up() == len(snapshots)
        for stop in stops:
            with LaneWriter(store, lanes["stopped"]) as writer:
                done = iter(range(10))
                writer.catch_up(stop=lambda done=done, stop=stop: next(done) == stop)
            for state in sorted((store / "lanes/stopped/state").glob("*"))[: stop % 3]:
                state.write_bytes(state.read_bytes()[:-1] if stop % 2 else b"")
        with LaneWriter(store, lanes["stopped"]) as writer:
            writer.catch_up()
        files = {
            name: {
                path.relative_to(store / "lanes" / name): path.read_bytes()
                for path in (store / "lanes" / name / "snapshots").rglob("*.arrow")
            }
            for name in lanes
        }
        assert files["whole"].keys() == files["stopped"].keys()
        assert files["whole"] == files["stopped"]
