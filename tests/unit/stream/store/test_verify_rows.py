"""``verify`` at the borders of what it allows: widths of features, and the offsets that a commit has reached."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from log_events import event, refusal

from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.store import LogHeader, Position
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.verify.index import wrong_rows
from freshet_graph.stream.store.verify.log import verify_log

HEADER = LogHeader(graph="g", interval_us=1, ids="int", node_features=3, edge_features=2)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_features_of_an_edge_have_its_width(length: int) -> None:
    rows = [event(1, 2, 0, features=[0.0, 0.0]), event(1, 2, 0), event(1, 2, 0, features=[0.0] * length)]
    found = list(wrong_rows(pa.Table.from_pylist(rows, schema=event_schema("int")), HEADER))
    assert found == ([] if length == 2 else ["row 2 has features of another width than 2"])


@pytest.mark.parametrize(
    ("length", "offset", "fits"),
    [
        (3, None, True),
        (2, None, False),
        (4, None, False),
        (2, 1, True),
        (2, 2, False),
        (1, 2, True),
        (1, -1, False),
    ],
)
def test_features_of_a_node_fit_its_width_from_their_place_on(
    length: int, offset: int | None, fits: bool
) -> None:
    row: dict[str, Any] = event(1, None, 0, features=[0.0] * length, feature_offset=offset)
    found = list(wrong_rows(pa.Table.from_pylist([row], schema=event_schema("int")), HEADER))
    assert found == ([] if fits else ["row 0 has features that don't fit the width 3"])


@pytest.mark.parametrize(("offset", "reached"), [(1, True), (2, False)])
def test_a_refused_message_lies_before_the_offset_that_its_commit_reached(
    offset: int, reached: bool, tmp_path: Path
) -> None:
    with LogWriter.open(tmp_path, HEADER) as writer:
        writer.commit(
            positions={("a", 0): Position(topic="a", partition=0, next=2, max_t_us=0)},
            rejects=refusal(offset),
            refused={"not_json": 1},
        )
    told = "has offset 2 of a[0], which commit 0 hasn't reached"
    assert [told in problem for problem in verify_log(tmp_path).problems] == ([] if reached else [True])
