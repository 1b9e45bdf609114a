"""A plugin that refuses skipped tests where nothing may be skipped (FRESHET_REQUIRE_KAFKA=1, set by .ci/run)."""

import os
import re
from typing import Any

import pytest

MAY_BE_ABSENT = re.compile(r"prometheus|promtool|kcat|\bGPU\b|\bCUDA\b|\.\./shared/data", re.IGNORECASE)
"""What a machine may lack without hiding a fault: a skip whose reason names none of these hides one."""
_FORBIDDEN = "skips forbidden in this process"


class SkipGuard:
    """Fails a run in which tests were skipped that must not be (FRESHET_REQUIRE_KAFKA=1, set by .ci/run)."""

    def __init__(self) -> None:
        self.forbidden: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._judge(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._judge(report)

    def _judge(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not MAY_BE_ABSENT.search(reason):
            self.forbidden[report.nodeid] = reason

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """One of several processes has ended: only itself knew of whole modules that it skipped."""
        self.forbidden.update(getattr(node, "workeroutput", {}).get(_FORBIDDEN, {}))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_FORBIDDEN] = self.forbidden
        if self.forbidden and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.forbidden:
            return
        terminalreporter.section("skipped, but FRESHET_REQUIRE_KAFKA=1 forbids it", sep="!", red=True)
        for nodeid, reason in self.forbidden.items():
            terminalreporter.line(f"{nodeid}: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("FRESHET_REQUIRE_KAFKA") == "1":
        config.pluginmanager.register(SkipGuard(), "skip-guard")
