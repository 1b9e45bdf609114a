"""Every kind of event on its way: two topics of a real broker, one log, two lanes, a restart in between."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streaming import T0, configuration, fresh_topic, log_table, run_job, send

from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.verify.store import verify
from freshet_graph.stream.store.window.view import WindowView

pytestmark = pytest.mark.integration

LANES = [{"name": name, "algorithm": name, "parts": 2} for name in ("hash", "sep")]
FIELDS = {"src": "card.id", "dst": "shop.id", "t": "at", "weight": "amount", "features": ["amount", "risk"]}
FIELDS |= {"event_id": "id", "op": "op", "label": "fraud"}


def payment(card: int, shop: str, at: str, event_id: str, **more: Any) -> bytes:
    """A message of a topic that knows nothing of graphs."""
    row = {"id": event_id, "card": {"id": card}, "shop": {"id": shop}, "at": at, "amount": 2.5, "risk": 0.5}
    return json.dumps(row | more).encode()


def repr_of(row: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((name, str(value)) for name, value in row.items())


def node(name: str, day: int, **more: Any) -> bytes:
    return json.dumps({"node": name, "t": T0 + 86_400 * day, **more}).encode()


def test_all_kinds_of_events_reach_the_log_and_the_lanes_once(kafka: str, tmp_path: Path) -> None:
    payments, profiles = (
        fresh_topic(kafka, partitions=2, stem="payments"),
        fresh_topic(kafka, stem="profiles"),
    )
    topics = [
        {
            "name": payments,
            "fields": FIELDS,
            "ops": {"c": "insert", "d": "delete"},
            "time_unit": "rfc3339",
            "id_prefix": {"src": "card:", "dst": "shop:"},
        },
        {"name": profiles},
    ]
    content = configuration(
        tmp_path / "store",
        kafka,
        *topics,
        ids="string",
        features={"node": 4, "edge": 2, "segments": 2},
        dedup_window_s=10 * 86_400.0,
        lanes=LANES,
    )
    day = ["2004-11-09T12:00:00Z", "2004-11-10T12:00:00Z", "2004-11-11T12:00:00Z"]
    first = [
        payment(1, "é/1", day[0], "p1"),
        payment(2, "é/1", day[0], "p2", fraud=1),
        payment(1, "é/1", day[0], "p1"),  # again
        payment(1, "é/1", day[1], "p3", op="d", amount=None, risk=None),
    ]
    send(kafka, payments, first, partition=0)
    send(
        kafka,
        profiles,
        [node("card:2", 0, features=[1, 2, 3, 4], label=7), node("card:2", 1, offset=2, values=[9, 8])],
    )
    ran, metrics = run_job(content)
    assert (ran.events, ran.refused, metrics.totals.duplicates) == (5, 0, 1)

    # After the restart: a repeat in another partition, a new event, one that is wrong.
    send(
        kafka, payments, [payment(2, "é/1", day[0], "p2"), payment(3, "b", day[2], "p4"), b"{}"], partition=1
    )
    ran, metrics = run_job(content)
    assert (ran.events, ran.refused, metrics.totals.duplicates) == (1, 1, 1)

    store = tmp_path / "store"
    rows = log_table(store).drop_columns(["event_id", "t"]).to_pylist()
    edge = {"op": 1, "weight": 2.5, "features": [2.5, 0.5], "feature_offset": None, "label": None}
    of_node = {"op": 0, "weight": 1.0, "dst": None, "dst_node": -1, "src": "card:2", "src_node": 2}
    expected = [
        of_node | {"features": [1, 2, 3, 4], "feature_offset": None, "label": 7},
        edge | {"src": "card:1", "dst": "shop:é/1", "src_node": 0, "dst_node": 1},
        edge | {"src": "card:2", "dst": "shop:é/1", "src_node": 2, "dst_node": 1, "label": 1},
        of_node | {"features": [9, 8], "feature_offset": 2, "label": None},
        edge
        | {"src": "card:1", "dst": "shop:é/1", "src_node": 0, "dst_node": 1}
        | {"op": -1, "weight": 1.0, "features": None},
        edge | {"src": "card:3", "dst": "shop:b", "src_node": 3, "dst_node": 4},
    ]
    order = {name: i for i, name in enumerate(LogReader(store).external_ids().to_pylist())}
    assert set(order) == {"card:1", "card:2", "card:3", "shop:é/1", "shop:b"}
    for row in expected:
        row["src_node"] = order[row["src"]]
        row["dst_node"] = -1 if row["dst"] is None else order[row["dst"]]
    assert sorted(rows, key=repr_of) == sorted(expected, key=repr_of)

    for lane in LANES:
        reader = LaneReader(store, lane["name"])
        view = WindowView(reader, 4)
        for manifest in reader.manifests:
            view.advance(manifest)
        card = np.array([order["card:2"]])
        assert view.features(card, view.taus[0]).tolist() == [[1, 2, 3, 4]]
        assert view.features(card, view.taus[-1]).tolist() == [[1, 2, 9, 8]]
        assert reader.manifests[-1].live_edges == 2
    assert verify(store).problems == []
