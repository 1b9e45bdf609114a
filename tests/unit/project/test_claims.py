"""The page of claims and the script that tries them again say the same."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))

import claims  # noqa: E402  # benchmarks are no package

pytestmark = pytest.mark.lint

ROWS = claims.page()
VERDICTS = ("reproduced", "partly", "refuted", "simulated", "open", "out of reach")


def test_every_paper_has_its_rows_numbered_from_one() -> None:
    for system in ("DistDy", "SPEED", "ESDG", "DyGNeX", "DynaHB"):
        numbers = [int(name.split()[1]) for name in ROWS if name.startswith(system)]
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 5


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_a_verdict_and_says_where_its_figure_is_from(name: str) -> None:
    row = ROWS[name]
    assert row.verdict.startswith(VERDICTS), row.verdict
    if not row.verdict.startswith(("open", "out of reach")):
        assert row.source, "a figure without its command, page or test"
    assert ("**" in row.found) == (name in claims.CHECKS), "figures in bold are those that the script reads"


def test_a_row_that_is_not_settled_has_its_price() -> None:
    left = claims.PAGE.read_text(encoding="utf-8").split("## The price of the rest")[1]
    priced = {
        f"{system} {number}"
        for system, numbers in re.findall(r"^- \*\*(\w+) ([\d, ]+)\*\*: ", left, re.M)
        for number in numbers.split(", ")
    }
    open_rows = {name for name, row in ROWS.items() if not row.verdict.startswith(("reproduced", "refuted"))}
    assert open_rows <= priced <= set(ROWS)


@pytest.mark.parametrize("name", claims.CHECKS)
def test_a_row_that_is_tried_again_has_a_figure_and_a_command_that_can_be_run(
    name: str,
) -> None:
    row = ROWS[name]
    assert row.figure > 0
    script = re.match(r"python (benchmarks/\w+\.py)", row.command)
    if script is None:
        assert row.command.startswith("freshet-"), row.command  # test_documentation parses it
        return
    text = (ROOT / script[1]).read_text(encoding="utf-8")
    for option in re.findall(r" --([\w-]+)", row.command):
        assert re.search(rf"\b{option.replace('-', '_')}=", text), f"{script[1]} has no --{option}"


def test_figures_are_read_from_tables_and_json() -> None:
    ways = "| way | s |\n|---|---|\n| slow | 1,234.5 ± 1 |\n"
    table = f"{ways}\n| set | saved % | s |\n|---|---|---|\n| email_eu | 71.9 | 2e-03 |\n"
    assert claims.cell("email_eu", "saved %")(table) == pytest.approx(71.9)
    assert claims.cell("slow", "s")(table) == pytest.approx(1234.5)
    assert claims.cell("email_eu", "s")(table) == pytest.approx(0.002)
    assert claims.value("points", 0, "gap", times=100)('log\n{"points": [{"gap": 0.02}]}\n') == pytest.approx(
        2
    )
    with pytest.raises(SystemExit, match="no row begins with 'email_eu' under a column 'cut'"):
        claims.cell("email_eu", "cut")(table)
