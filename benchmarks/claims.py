"""Claims of the five papers, tried again: python benchmarks/claims.py [ROW …] [--data DIR].

docs/claims.md has them, a row each. Those below are repeated, in less than an hour together: a row's own command runs in a
folder with the graphs of ``--data``, and its figure, read from what the command prints, must be the one in bold on the page.
Figures that depend on the processor may differ by more than others.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import harness

PAGE = harness.ROOT / "docs" / "claims.md"


class Row(NamedTuple):
    """What the page says of a claim."""

    claim: str
    published: str
    found: str
    verdict: str
    source: str

    @property
    def figure(self) -> float:
        """The first number in bold."""
        number = re.search(r"\*\*([\d.,]+)", self.found)
        harness.require(number, f"no figure stands in bold beside {self.claim!r}")
        assert number is not None
        return float(number[1].replace(",", ""))

    @property
    def command(self) -> str:
        """The first command, or nothing."""
        command = re.search(r"`((?:python|freshet-stream|freshet-trainer) [^`]+)`", self.source)
        return command[1].replace(r"\|", "|") if command else ""


class Check(NamedTuple):
    """How a figure is read from the output of a row's command, and by how much it may differ from the page's."""

    read: Callable[[str], float]
    within: float


def page() -> dict[str, Row]:
    """Rows by their names, such as ``SPEED 3``."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
    return {name: Row(*rest) for name, *rest in filter(None, cells) if re.fullmatch(r"[A-Z]\w+ \d+", name)}


def cell(row: str, column: str) -> Callable[[str], float]:
    """A number in a printed Markdown table: the first row that begins so, and the title of its column."""

    def read(output: str) -> float:
        titles: list[str] = []
        for line in output.splitlines():
            cells = [text.strip() for text in line.strip().strip("|").split("|")]
            if line.startswith("|") and column in cells:
                titles = cells
            elif titles and line.startswith(f"| {row}"):
                return number(cells[titles.index(column)])
        sys.exit(f"FAILED: no row begins with {row!r} under a column {column!r} in\n{output[-2000:]}")

    return read


def value(*keys: str | int, times: float = 1) -> Callable[[str], float]:
    """A number in the JSON object that a command printed last."""

    def read(output: str) -> float:
        found: Any = json.loads(output.strip().splitlines()[-1])
        for key in keys:
            found = found[key]
        return times * float(found)

    return read


def passed(output: str) -> float:
    """How many tests passed."""
    return number(output.strip().splitlines()[-1])


def number(text: str) -> float:
    """The first one."""
    first = re.search(r"-?[\d,]*\.?\d+(?:e[+-]\d+)?", text)
    harness.require(first, f"no number in {text!r}")
    assert first is not None
    return float(first[0].replace(",", ""))


def ratio(one: Callable[[str], float], other: Callable[[str], float]) -> Callable[[str], float]:
    """How many times a figure is another one."""
    return lambda output: one(output) / other(output)


SECONDS = "s to the loss of snapshot batches"
CHECKS = {
    "DistDy 1": Check(cell("collegemsg, 30 snapshots", "saved %"), 0.2),
    "DistDy 2": Check(value("saving", times=100), 0.2),
    "DistDy 6": Check(cell("distdy, stay", "1,000 rows"), 1),
    "SPEED 3": Check(value("cut", times=100), 0.05),
    "SPEED 4": Check(cell("collegemsg, tgn-history", "AP"), 0.002),
    "ESDG 1": Check(cell("sx, weekly", "`esdg`, of COO32 / COO64"), 0.01),
    "ESDG 3": Check(cell("sx, weekly", "all rows"), 0.5),
    "ESDG 6": Check(cell("`tmgcn`", "largest difference, share of the loss"), 0.01),
    "DyGNeX 1": Check(value("points", 0, "efficiency", times=100), 0.05),
    "DyGNeX 2": Check(value("points", 0, "efficiency", times=100), 0.05),
    "DyGNeX 8": Check(cell("300", "worst"), 0.01),
    "DynaHB 1": Check(ratio(cell("snapshot batches", SECONDS), cell("fixed 10 % × 10 %", SECONDS)), 1),
    "DynaHB 7": Check(cell("sx", "share"), 0.001),
    "DynaHB 8": Check(cell("hash", "MiB of each"), 1),
}


def rows(given: Any, folder: Path) -> Iterator[list[object]]:
    known = page()
    for name in harness.chosen(given.rows, CHECKS):
        row, check = known[name], CHECKS[name]
        began = time.perf_counter()
        done = subprocess.run(
            ["bash", "-euc", row.command], cwd=folder, capture_output=True, text=True, check=False,
            env=harness.environment(PATH=f"{Path(sys.executable).parent}:{harness.environment()['PATH']}"),
        )  # fmt: skip
        harness.require(
            not done.returncode, f"{name}: {row.command} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
        figure = check.read(done.stdout)
        agrees = abs(figure - row.figure) <= check.within
        given.wrong += not agrees
        yield [
            name, row.claim, row.published, f"{row.figure:g}", f"{figure:g}", f"± {check.within:g}",
            "yes" if agrees else "**no**", f"{time.perf_counter() - began:.0f}",
        ]  # fmt: skip


def main() -> None:
    given = harness.options(__doc__, {"rows": []}, data=harness.DATA)
    given.wrong = 0
    with harness.scratch() as folder:
        for path in [*given.data.glob("*.parquet"), *harness.ROOT.glob("[!.]*")]:
            (folder / path.name).symlink_to(path.resolve())
        harness.table("row | claim | published | page | now | may differ | agrees | s", rows(given, folder))
    harness.require(not given.wrong, f"{given.wrong} figures differ from those of {PAGE.name}")


if __name__ == "__main__":
    main()
