"""Figures for people: bytes in MiB."""

from collections.abc import Mapping
from typing import Any

_MIB = 1 << 20


def with_units(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of a table whose keys name bytes, in MiB; the others as they are."""
    return {
        key: f"{value / _MIB:,.1f} MiB" if "bytes" in key and isinstance(value, int | float) else value
        for key, value in rows.items()
    }
