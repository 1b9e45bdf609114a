"""A process that holds leases as another machine would."""

import secrets
from collections.abc import Callable

import pytest

from freshet_graph.stream.store.places import lease as lease_module


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on this process holds leases as one of another machine would; returns what ends that."""
    name = f"another machine {secrets.token_hex(4)}"
    monkeypatch.setattr(lease_module, "_boot", lambda: name)
    return lambda: monkeypatch.setattr(lease_module, "_boot", lambda: "this machine")
