"""Options beyond what a command can work with: wrong usage, exit code 2, and never a traceback."""

import pytest
from lane_stream import make_store
from typer.testing import CliRunner

from freshet_graph.stream.cli import app

PLAN = ["plan", "--rate", "5", "--nodes", "10", "--interval", "1"]


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            [*PLAN, option, value]
            for option, value in (("--rate", "inf"), ("--rate", "nan"), ("--interval", "inf"))
        ),
        [*PLAN, "--keep-days", "inf"],
        [*PLAN, "--nodes", "1" + "0" * 400],
        ["compact", "store", "--keep-time", "inf"],
        ["compact", "store", "--keep-snapshots", "0"],
        ["savings", "file.csv", "--parts", "100000"],
        ["savings", "file.csv", "--window", "1" + "0" * 20],
        ["synth", "--nodes", "9", "--edges", "9", "--out", "file.csv", "--span", "inf"],
    ],
    ids=" ".join,
)
def test_numbers_out_of_bounds_are_wrong_usage(arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "Invalid value" in result.output


def test_a_moment_before_the_first_event_is_named(tmp_path):
    store = make_store(tmp_path / "store")
    result = CliRunner().invoke(
        app, ["partition", str(store), "--algorithm", "hash", "--parts", "2", "--as-of", "1969-01-01"]
    )
    assert result.exit_code == 1
    assert "has no snapshot as old as 1969-01-01T00:00:00Z; it holds 0 to" in result.stderr


def test_a_file_without_events_is_named(tmp_path):
    file = tmp_path / "none.csv"
    file.write_text("src,dst,t\n")
    result = CliRunner().invoke(app, ["savings", str(file), "--algorithm", "hash"])
    assert result.exit_code == 1
    assert f"{file} has no events" in result.stderr.replace("\n", "")
