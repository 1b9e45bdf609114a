"""A process that holds leases as another machine would."""

from collections.abc import Callable

import pytest

from freshet_graph.stream.store.places import lease as lease_module


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on this process holds leases as one of another machine would; returns what ends that."""
    monkeypatch.setattr(lease_module, "_boot", lambda: "another machine")
    return lambda: monkeypatch.setattr(lease_module, "_boot", lambda: "this machine")
