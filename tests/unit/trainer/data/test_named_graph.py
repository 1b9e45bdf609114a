"""Graphs by the numbers of remembered nodes beside a plain relabelling; and event models that read no graph at all."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs
from trainer_streams import SECOND, make_lane, meetings

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.store.errors import StoreError
from freshet_graph.stream.store.window.view import WindowView
from freshet_graph.trainer.data.node_names import NodeNames
from freshet_graph.trainer.data.views import NamedGraph
from freshet_graph.trainer.evaluation import evaluate as evaluation
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session


def entries(graph, label) -> dict[tuple[int, int], float]:
    """Weights by labelled pair, of those whose ends have a label."""
    rows = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    found = {}
    for row, column, weight in zip(
        rows.tolist(), graph.indices.tolist(), graph.weights.tolist(), strict=True
    ):
        if label.get(row) is not None and label.get(column) is not None:
            found[label[row], label[column]] = weight
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_graph_with_forgotten_nodes_is_the_plain_relabelling_of_what_is_left(
    seed: int, tmp_path: Path
) -> None:
    """Nodes are forgotten now and then; those that an event names come back under new numbers."""
    lane = make_lane(tmp_path / "store", events=meetings(seed=seed, nodes=40, a_snapshot=30, snapshots=8))
    plain, names = WindowView(lane, 3), NodeNames()
    named = NamedGraph(WindowView(lane, 3), names)
    rng = np.random.default_rng(seed)
    label: dict[int, int] = {}
    forgot = 0
    for manifest in lane.manifests:
        plain.advance(manifest)
        named.advance(manifest)
        for node in range(manifest.num_nodes):
            if node not in label:
                label[node] = sum(each is not None for each in label.values())
        columns = plain.events(manifest.tau)
        for end in np.stack([columns.src, columns.dst], axis=1).ravel().tolist():
            if label[end] is None:
                label[end] = sum(each is not None for each in label.values())
        by_number = {number: node for node, number in label.items() if number is not None}
        assert len(names) == len(by_number) == named.num_nodes
        everyone = np.arange(len(names))
        np.testing.assert_array_equal(
            names.ids(everyone), [by_number[number] for number in everyone.tolist()]
        )
        for tau in plain.taus:
            graph, whole = named.csr(tau), plain.csr(tau)
            assert entries(graph, {number: number for number in by_number}) == entries(whole, label)
            assert graph.num_nodes == len(names) or names.are_ids
            for row in range(graph.num_nodes):
                inside = graph.indices[graph.indptr[row] : graph.indptr[row + 1]]
                assert (np.diff(inside) > 0).all(), "sorted within a row"
            owner, former = named.owner(tau), plain.owner(tau)
            for number, node in by_number.items():
                if number < len(owner):
                    assert owner[number] == (former[node] if node < len(former) else -1)
            there = np.array([number for number, node in by_number.items() if node < len(former)])
            ids = np.array([by_number[number] for number in there.tolist()])
            np.testing.assert_array_equal(named.features(there, tau), plain.features(ids, tau))
        if manifest.sequence % 2:
            kept = np.flatnonzero(rng.random(len(names)) < 0.6)
            names.keep(kept)
            moved = {number: place for place, number in enumerate(kept.tolist())}
            forgot += len(by_number) - len(kept)
            label = {
                node: moved.get(number) if number is not None else None for node, number in label.items()
            }
    assert forgot > 20


EVENTS = {"model": "tgn", "strategy": "sequential", "model_params": {"memory": 8, "time_width": 8}}


@pytest.mark.parametrize(
    "more", [EVENTS, {"model_params": {"hidden": 8, "signature": 4}}], ids=["events", "graph"]
)
def test_evaluate_with_an_event_model_reads_no_file_of_the_lane_but_its_records(
    more: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane's data is taken away before training; a snapshot model, which needs it, shows that it is gone."""
    events = meetings(snapshots=8, a_snapshot=50, features=False)
    seconds = [t / SECOND for t in events["t"].to_pylist()]
    pq.write_table(
        events.select(["src", "dst", "op"]).append_column("t", [seconds]), tmp_path / "events.parquet"
    )
    gone: list[Path] = []
    made = Session.__init__

    def without_data(self, config, lane, ranks, **other) -> None:  # type: ignore[no-untyped-def]
        gone.extend(Path(str(lane.root)).rglob("*.arrow"))
        for path in gone:
            path.unlink()
        made(self, config, lane, ranks, **other)

    monkeypatch.setattr(Session, "__init__", without_data)
    config = TrainerConfig.model_validate(
        {
            "lane": "hash",
            "model": "sage-linear",
            "strategy": "vertex",
            "interval_s": 1.0,
            "window": 2,
            "optimisation": {"epochs": 1, "batch_size": 16},
            **more,
        }
    )

    def evaluated() -> dict | None:
        with capture_logs():
            return evaluation.evaluate(
                config, tmp_path / "events.parquet", Ranks(), shares=(0.5, 0.2, 0.3), seeds=1
            )

    if "model" in more:
        told = evaluated()
        assert told is not None
        assert told["ap"] > 0
    else:
        with pytest.raises(StoreError):
            evaluated()
    assert gone, "there was data"
