"""``try FILE``: the first rows of a file, their events and refusals, and the columns they were read from."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from freshet_graph.stream.cli import app
from freshet_graph.stream.decode.proposed import proposed


def trial(file: Path, *flags: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["try", str(file), *map(str, flags), "--json"])
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_rows_are_counted_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "e.csv"
    file.write_text("src,dst,t,weight\n1,2,10,\n1,3,x,\n1,2\n1,4,11,nan\n2,3,12.5,2\n9,9,9,9\n")
    result = trial(file, "--messages", 5)
    assert (result["messages"], result["events"]) == (5, 2)
    assert result["refused"] == {"wrong_type": 2, "not_finite": 1}
    assert result["fields"] == {"src": "src", "dst": "dst", "t": "t", "weight": "weight"}
    assert result["examples"][:2] == [
        {"offset": 0, "event": {"src": 1, "dst": 2, "t": 10}},
        {"offset": 4, "event": {"src": 2, "dst": 3, "t": 12.5, "weight": 2}},
    ]
    assert {example["offset"] for example in result["examples"][2:]} == {1, 2, 3}
    assert "column t has 'x'" in result["examples"][2]["sentence"]
    assert [path.name for path in tmp_path.iterdir()] == ["e.csv"]


def test_columns_are_proposed_and_flags_are_those_of_other_commands(tmp_path: Path) -> None:
    file = tmp_path / "e.txt"
    file.write_text("from;to;when;amount\na;b;1700000000000;2\n")
    result = trial(file, "--delimiter", ";", "--time-unit", "ms")
    assert result["fields"] == {"src": "from", "dst": "to", "t": "when", "weight": "amount"}
    assert result["examples"] == [
        {"offset": 0, "event": {"src": "a", "dst": "b", "t": 1700000000, "weight": 2}}
    ]
    flag = result["proposal"]["columns"]
    done = CliRunner().invoke(app, ["try", str(file), "--delimiter", ";", "--time-unit", "ms"])
    assert done.stdout.endswith(f"--columns {flag}\n")
    assert "proposal" not in trial(file, "--delimiter", ";", "--time-unit", "ms", "--columns", flag)
    done = CliRunner().invoke(app, ["try", str(file)])
    assert done.exit_code == 1
    assert "give --delimiter ';'" in done.stderr


def test_a_trial_without_any_event_fails_behind_its_result(tmp_path: Path) -> None:
    file = tmp_path / "e.csv"
    file.write_text("src,dst,t,weight\n1,2,10,nan\n1,3,11,nan\n")
    done = CliRunner().invoke(app, ["try", str(file), "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["refused"] == {"not_finite": 2}
    assert done.stderr.startswith("error: none of 2 rows became an event. ")


@pytest.mark.parametrize(
    ("paths", "fields"),
    [
        (["src", "dst", "t", "user"], {"src": "src", "dst": "dst", "t": "t"}),
        (["card.id", "shop.id", "at"], {"src": "card.id", "dst": "shop.id", "t": "at"}),
        (["a", "b"], {"src": "a", "dst": "b"}),
        (["x", "y_1"], {}),
        (
            ["from_user", "to_user", "when", "id"],
            {"src": "from_user", "dst": "to_user", "t": "when", "event_id": "id"},
        ),
        (["cardId", "merchant_id", "createdAt"], {"src": "cardId", "dst": "merchant_id", "t": "createdAt"}),
        (
            ["event.id", "event.type", "card.id", "shop.id"],
            {"src": "card.id", "dst": "shop.id", "event_id": "event.id"},
        ),
        (["card.id", "shop", "product.id"], {"src": "card.id", "dst": "shop"}),
    ],
)
def test_proposals_are_by_the_last_key(paths: list[str], fields: dict[str, str]) -> None:
    assert proposed(paths) == fields


@pytest.mark.parametrize("arguments", [[], ["e.csv", "--topic", "t"], ["--topic", "t"]])
def test_a_file_or_a_topic_with_brokers_is_needed(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["try", *arguments]).exit_code == 2
