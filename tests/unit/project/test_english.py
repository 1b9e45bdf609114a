"""Pages, docstrings, help texts and error sentences keep the guide to English in CONTRIBUTING.md, as far as patterns can tell."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer.main

from freshet_graph.stream.cli import app as stream_app
from freshet_graph.trainer.cli import app as trainer_app

pytestmark = pytest.mark.lint

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
SHORT = [
    page for page in PAGES if page.parent.name not in ("results", "decisions")
]  # whose captions may be long

MEASURE = (
    "bytes|seconds|s|ms|µs|ns|KiB|MiB|MB|GB|events|edges|messages|nodes|rows|steps|snapshots|passes|vectors|pairs|ids|"
    "files|requests|commits|entries|neighbours|segments|values|floats"
)
EACH = (
    "second|minute|day|snapshot|node|rank|event|edge|message|id|row|pair|part|step|core|batch|epoch|query|group|commit|"
    "poll|cycle|file|segment|graph"
)
WRONG = {
    "again, or newly": r"\banew\b",
    "continues, or resumes": r"\b(?:goes|go|going|went) on\b",
    "so, or therefore": r"\b(?:[Hh]ence|thereof|therein|thereby|whereby|wherein|thereupon|henceforth)\b",
    "also, or in the same way": r"(?i:\blikewise\b)",
    "without success": r"\bin vain\b",
    "anyone who, or the process that": r"(?i:\bwhoever\b)",
    "does not exist, or there is no": r"\b(?:is|are) none\b",
    "nobody is a person; name the thing": r"\bnobody(?:'s| else's)\b",
    "by default": r"\bunless told otherwise\b",
    "name what else": r"\bmuch else\b",
    "can be had: say who can afford it": r"\bto be had\b",
    "per": rf"\b(?:{MEASURE}) an? (?:{EACH})\b",
    "begin with the subject, not with what or who": r"(?:^|(?<=[.:!] )|(?<=# )|(?<=\*\*))(?:What|Who|Whom) (?![^.!]*\?)",
    "a place that a reader does not have": r"\.\./shared|\bseed 0\d",
    "says, shows or reports; things do not tell": r"\b(?:tells|told)\b(?! apart)",
    "except": r"\bbut for\b",
    "otherwise": r"[;,] else\b",
    "this many, or for that long": r"\bso (?:many|long)\b(?! as)",
    "with an error": r"\bwith a sentence\b",
}
"""Patterns that a reader stumbles over, by what to write instead."""

LONGEST = 120
"""Words of a paragraph, outside of results."""


def without_code(page: Path) -> str:
    """The text of a page, without the guide's own examples."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```|^## English\n.*?(?=^## )", "", text, flags=re.M | re.S)


def slips(text: str, only: Sequence[str] = tuple(WRONG)) -> list[str]:
    """Which patterns a text has, each with the words around it."""
    return [
        f"{found[0]!r} in …{text[max(0, found.start() - 40) : found.end() + 40]}…: {better}"
        for better, pattern in WRONG.items()
        if better in only
        for found in re.finditer(pattern, text, re.M)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_reads_plainly(page: Path) -> None:
    assert slips(without_code(page)) == []


@pytest.mark.parametrize("page", SHORT, ids=lambda page: str(page.relative_to(ROOT)))
def test_paragraphs_are_short(page: Path) -> None:
    blocks = re.split(r"\n\s*\n|\n(?=\s*- |\s*\d+\. |\|)", without_code(page))
    long = {block.strip()[:60]: len(block.split()) for block in blocks if not block.startswith("|")}
    assert {begin: words for begin, words in long.items() if words > LONGEST} == {}


def helps(command: Any, name: str) -> Iterator[tuple[str, str]]:
    """The help of a command, of its options and of what is below it."""
    yield name, command.help or ""
    for parameter in command.params:
        yield f"{name} {parameter.name}", getattr(parameter, "help", None) or ""
    for below, found in getattr(command, "commands", {}).items():
        yield from helps(found, f"{name} {below}")


def test_help_texts_read_plainly() -> None:
    texts = [
        *helps(typer.main.get_command(stream_app), "freshet-stream"),
        *helps(typer.main.get_command(trainer_app), "freshet-trainer"),
    ]
    assert len(texts) > 100
    assert {name: found for name, text in texts if (found := slips(" ".join(text.split())))} == {}


def errors() -> Iterator[tuple[str, str]]:
    """Sentences of exceptions that are raised, with file and line; what is filled in reads {}."""
    for package in ("schemas", "stream", "trainer"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    for argument in node.exc.args:
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", _text(argument)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else ""


EVERYWHERE = (
    "again, or newly",
    "continues, or resumes",
    "so, or therefore",
    "also, or in the same way",
    "without success",
    "anyone who, or the process that",
    "nobody is a person; name the thing",
    "by default",
    "name what else",
    "can be had: say who can afford it",
    "a place that a reader does not have",
)
"""Patterns without false alarms in docstrings, whose grammar is otherwise left to their readers."""


def docstrings() -> Iterator[tuple[str, str]]:
    """Of modules, classes and functions that are public."""
    for package in ("schemas", "stream", "trainer"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module):
                    yield f"{path.relative_to(ROOT)}:1", ast.get_docstring(node) or ""
                elif isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", ast.get_docstring(node) or ""


def test_docstrings_read_plainly() -> None:
    found = dict(docstrings())
    assert len(found) > 2000
    assert {where: slip for where, text in found.items() if (slip := slips(text, EVERYWHERE))} == {}


REMEDY = r"; (?:check|choose|set|create|remove|restore|use|start|give|name|leave|put|run|train|see|renew|open|try|take)\b"


def test_error_sentences_read_plainly() -> None:
    found = dict(errors())
    assert len(found) > 400
    assert {where: slip for where, text in found.items() if (slip := slips(text))} == {}
    assert {where: text for where, text in found.items() if re.search(REMEDY, text)} == {}, (
        "a remedy is a sentence of its own"
    )


def test_the_patterns_find_the_guides_examples() -> None:
    """Each row of the guide's table has an example that the patterns find, and its plain version, which they do not."""
    section = (
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## English\n")[1].split("\n## ")[0]
    )
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", section, re.M)[1:]
    assert len(rows) >= 8
    for _, wrong, right in rows:
        assert slips(wrong.strip("`")) or re.search(REMEDY, wrong), wrong
        assert not slips(right) and not re.search(REMEDY, right), right
