"""``--quick`` keeps a sample of the tests that takes two minutes: ``make test-quick``.

Of each file every fifth test function runs once, with its first parameters, unless it starts processes or servers.
"""

from collections import defaultdict

import pytest

STARTS = frozenset({"commands", "kafka", "own", "pair", "processes", "s3", "secure", "warm"})
"""Fixtures behind which there is another process."""
ONE_IN = 5
"""Functions of a file, of which one runs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption(
        "--quick", action="store_true", help="Run a sample of the tests, and none that starts processes."
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all others, and say how many."""
    if not config.getoption("--quick"):
        return
    functions: dict[str, list[str]] = defaultdict(list)
    chosen, left = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        file, function = item.nodeid.partition("::")[0], item.nodeid.partition("[")[0]
        alone = STARTS.isdisjoint(getattr(item, "fixturenames", ()))
        is_new = alone and function not in functions[file]
        if is_new:
            functions[file].append(function)
        (chosen if is_new and len(functions[file]) % ONE_IN == 1 else left).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=left)
