"""Names say what they hold: words that say only that something is held, found or asked name nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.lint

ROOT = Path(__file__).parents[3]
WORDS = frozenset({"asked", "at", "by", "each", "found", "held", "kept", "own", "there", "told"})
ALLOWED = {
    ("trainer/models/event_model.py", "own"),  # fields of ``Hop``, which models of other packages read
    ("trainer/models/event_model.py", "there"),
    ("trainer/models/convolutions.py", "own"),  # a layer over a node's own row, a key of checkpoints
}


def named(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Parameters, variables, attributes, methods and functions that a module names, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.FunctionDef):
            yield node.lineno, node.name


@pytest.mark.parametrize("package", ["schemas", "stream", "trainer"])
def test_names_say_what_they_hold(package: str) -> None:
    vague = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, name in named(ast.parse(path.read_text(encoding="utf-8")))
        if name.strip("_") in WORDS and (str(path.relative_to(ROOT)), name.strip("_")) not in ALLOWED
    ]
    assert not vague, f"say what they hold: {vague}"


@pytest.mark.parametrize("package", ["schemas", "stream", "trainer"])
def test_no_class_name_stands_for_two_things(package: str) -> None:
    homes: dict[str, list[str]] = {}
    for other in ("schemas", "stream", "trainer"):
        for path in sorted((ROOT / other).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    shared = {
        name: paths
        for name, paths in homes.items()
        if len(paths) > 1 and any(path.startswith(package) for path in paths)
    }
    assert not shared
