"""Rows that a snapshot partition of real streams sends: only those of nodes with an edge."""

import sys
from pathlib import Path

import pytest
from real_data import real_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import snapshot_volume

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    ("name", "snapshots", "share"),
    [
        ("sx, weekly, raw", 337, 0.022),
        ("sx, weekly", 337, 0.090),
        ("slashdot, 60 slices", 60, 0.215),
        ("email_eu, daily", 526, 0.61),
        ("amlsim_20k, daily", 149, 0.449),
    ],
)
def test_active_rows_are_a_small_share_of_all(name: str, snapshots: int, share: float) -> None:
    data = real_file(f"{snapshot_volume.SETS[name][0]}.parquet").parent
    stream = snapshot_volume.stream_of(data, name)
    assert stream is not None
    size = snapshot_volume.size_of(stream)
    assert size.snapshots == snapshots
    for layers in (1, 2):
        active, every = (size.sent(16, layers, all_rows=each) for each in (False, True))
        assert active / every == pytest.approx(share, rel=0.02)
