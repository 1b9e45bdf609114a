"""``--quick`` keeps a sample of the tests that takes two minutes: ``make test-quick``.

Each test function runs once, with its first parameters, unless it starts processes or servers.
"""

import pytest

STARTS = frozenset({"commands", "kafka", "own", "pair", "processes", "s3", "secure", "warm"})
"""Fixtures behind which there is another process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption(
        "--quick", action="store_true", help="Run each test function once, and none that starts processes."
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all others, and say how many."""
    if not config.getoption("--quick"):
        return
    seen: set[str] = set()
    chosen, left = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        function = item.nodeid.partition("[")[0]
        sampled = function not in seen and STARTS.isdisjoint(getattr(item, "fixturenames", ()))
        seen.add(function)
        (chosen if sampled else left).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=left)
