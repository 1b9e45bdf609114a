"""How densely a test visits the points at which a process may end, or an operation may fail."""

import pytest

sweep = pytest.mark.parametrize(
    "step",
    [pytest.param(7, id="every seventh point"), pytest.param(1, id="every point", marks=pytest.mark.slow)],
)
"""``make test`` visits every seventh point, ``make test-slow`` all of them."""
