"""The main job on real input: files through Kafka into the log, its live graph and its lanes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from real_data import real_file
from streaming import configuration, fresh_topic, log_table, result, written
from trainer_command import trainer

from freshet_graph.schemas.events import Op
from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.stream.snapshots.pairs import Change
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.reader import LogReader

pytestmark = [pytest.mark.real, pytest.mark.integration, pytest.mark.slow]

LANES = [{"name": name, "algorithm": name, "parts": 2} for name in ("distdy", "sep", "hash")]

GRAPHS = {
    # file: inserts, deletes, days of a snapshot, events of a step
    "collegemsg.parquet": (59_835, 0, 1, 512),
    "as733_deltas.parquet": (122_605, 110_033, 7, 128),
}


@pytest.mark.parametrize("message_format", ["json", "arrow"])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_real_stream_is_in_the_log_exactly_and_in_every_lane_and_is_learned(
    kafka: str, tmp_path: Path, name: str, message_format: str
) -> None:
    path, (inserts, deletes, days, batch_size) = real_file(name), GRAPHS[name]
    topic, store = fresh_topic(kafka), tmp_path / "store"
    lanes = LANES if message_format == "json" else LANES[-1:]  # of the same log
    sent = result("replay", path, "--bootstrap", kafka, "--topic", topic, "--format", message_format)
    content = configuration(
        store,
        kafka,
        {"name": topic, "format": message_format},
        lanes=lanes,
        snapshots={"interval_s": days * 86_400},
    )
    ran = result("run", "--config", written(tmp_path, content), "--until-idle", "2")
    assert sent["sent"] == ran["events"] == inserts + deletes
    assert (ran["refused"], ran["late"]) == (0, 0)

    log = log_table(store)
    file = in_event_time_order(pq.read_table(path))
    for column in ("op", "src", "dst", "t"):
        assert np.array_equal(log[column].to_numpy(), file[column]), column
    assert int((log["op"].to_numpy() == Op.INSERT).sum()) == inserts

    reader = LogReader(store)
    live = live_pairs_of(reader)
    assert live == live_pairs_by_hand(file)
    for lane in lanes:
        manifests = LaneReader(store, lane["name"]).manifests  # type: ignore[arg-type]
        assert [manifest.tau for manifest in manifests] == [snapshot.tau for snapshot in reader.snapshots]
        undirected = {(min(pair), max(pair)) for pair in live}
        nodes = {node for pair in undirected for node in pair}
        assert manifests[-1].live_nodes == len(nodes)
    assert result("verify", store)["problems"] == []
    if message_format == "json":  # the log is the same, whatever the format
        learned_by_two_ranks(
            tmp_path, store, batch_size, events=inserts + deletes, snapshots=len(reader.snapshots)
        )


def learned_by_two_ranks(folder: Path, store: Path, batch_size: int, *, events: int, snapshots: int) -> None:
    """Train continually on the distdy lane of a store; the scores must deserve the name."""
    trained = trainer(
        folder, "run", "--ranks", "2", "--until-idle", "1",
        store=str(store), lane="distdy", model="sage-linear", strategy="vertex",
        model_params={"hidden": 64}, checkpoint_every=50, optimisation={"epochs": 1, "batch_size": batch_size},
    )  # fmt: skip
    assert (trained["events"], trained["snapshots"]) == (events, snapshots)
    assert trained["ap"] > trained["random_ap"] + 0.1
    assert trained["ap"] > trained["edgebank_ap"]
    assert trained["ap"] > 0.8
    assert 0.5 < trained["recency_ap"] < 1


def in_event_time_order(table: pa.Table) -> dict[str, np.ndarray]:
    """The file's columns in order of time, equal times in file order; t in microseconds."""
    ops = table["op"].to_numpy() if "op" in table.column_names else np.ones(table.num_rows)
    order = np.argsort(table["t"].to_numpy(), kind="stable")
    return {
        "op": ops.astype(np.int8)[order],
        "src": table["src"].to_numpy().astype(np.int64)[order],
        "dst": table["dst"].to_numpy().astype(np.int64)[order],
        "t": (table["t"].to_numpy().astype(np.int64) * 1_000_000)[order],
    }


def live_pairs_by_hand(file: dict[str, np.ndarray]) -> dict[tuple[int, int], int]:
    """Directed pairs that are live at the end, and the time of their last insert: one event after the other."""
    live: dict[tuple[int, int], int] = {}
    for op, src, dst, t in zip(*(file[name].tolist() for name in ("op", "src", "dst", "t")), strict=True):
        if op == Op.INSERT:
            live[src, dst] = t
        else:
            live.pop((src, dst), None)
    return live


def live_pairs_of(reader: LogReader) -> dict[tuple[int, int], int]:
    """The same from the log by the live graph that lanes use, in external ids."""
    graph, times = LiveGraph(), np.zeros(0, np.int64)  # of the latest insert, by slot
    for snapshot in reader.snapshots:
        delta = graph.apply(snapshot.tau, reader.events(snapshot.tau))
        changed = graph.changed()
        lives = changed.change != Change.REMOVED
        times = np.append(times, np.zeros(graph.num_slots - len(times), np.int64))
        times[changed.slot[lives]] = delta.t[changed.event_row[lives]]
    pairs, ids = graph.pairs(), reader.external_ids().to_numpy()
    src, dst = ids[pairs.src].tolist(), ids[pairs.dst].tolist()
    return dict(zip(zip(src, dst, strict=True), times[pairs.slot].tolist(), strict=True))
