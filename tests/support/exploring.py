"""A plugin that draws new examples of the property tests, by a seed that is printed and for a bounded time (``make explore``)."""

import math
import os
import time
from collections.abc import Iterator
from functools import wraps
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import UnsatisfiedAssumption

PROFILE = "exploring"
EXPLORE_S = float(os.environ.get("FRESHET_EXPLORE_S", "40"))
"""Of all tests together; each has an equal share of what is left when it begins."""

settings.register_profile(
    PROFILE,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=False,
    database=None,  # what is drawn is the seed's alone
    print_blob=True,
)


def examples_only(test: Any) -> Any:
    """Have a property test of dear examples run the written ones only; ``make explore`` draws others.

    The first that hypothesis draws is the least one, which shows little: nobody has time for those after it.
    """
    exploring = settings.get_current_profile_name() == PROFILE
    return test if exploring else settings(phases=[Phase.explicit])(test)


class _TimeIsOverError(BaseException):
    """Ends a test after an example; hypothesis takes it for Ctrl-C, and pytest never sees it."""


class Exploring:
    """Ends each test's examples when its share of the time is over, unless one has failed, which is made small.

    Args:
        seed: Of all draws.
    """

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._left, self._until = 0, math.inf

    def pytest_report_header(self) -> str:
        return f"new examples of seed {self._seed} for {EXPLORE_S:g} s"

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._left = sum(hasattr(getattr(item, "obj", None), "hypothesis") for item in session.items)
        self._until = time.monotonic() + EXPLORE_S

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Iterator[None]:
        property_test = getattr(item.obj, "hypothesis", None)
        if property_test is None:
            return (yield)
        now, tried, failed = time.monotonic(), property_test.inner_test, []
        until = now + (self._until - now) / self._left
        self._left -= 1

        @wraps(tried)
        def bounded(*arguments: Any, **named: Any) -> None:
            try:
                tried(*arguments, **named)
            except UnsatisfiedAssumption:
                raise
            except Exception:
                failed.append(True)
                raise
            if time.monotonic() > until and not failed:
                raise _TimeIsOverError

        property_test.inner_test = bounded
        try:
            return (yield)
        except _TimeIsOverError:
            return None
        finally:
            property_test.inner_test = tried

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if "failed" in terminalreporter.stats:
            again = f"make explore SEED={self._seed} PYTEST_ARGS='-k name-of-the-test'"
            terminalreporter.line(
                f"these examples are of seed {self._seed}; to draw them again: {again}", red=True
            )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-profile") == PROFILE:
        config.pluginmanager.register(Exploring(config.getoption("--hypothesis-seed")))
