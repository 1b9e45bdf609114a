"""Where the real graphs are, and how a test asks for one."""

from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def real_file(name: str) -> Path:
    """A file of ../shared/data; the test is skipped where it is missing."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"../shared/data/{name} is not here")
    return path
