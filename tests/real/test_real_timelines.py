"""Bytes that real streams send to a device, snapshot by snapshot, by every way of telling them."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from real_data import DATA, real_file

from freshet_graph.schemas.trainer_config import Smoothing

pytestmark = pytest.mark.real
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "timeline.py"
SMALL = {"as733_deltas", "bitcoin_otc", "canparl_votes", "collegemsg", "uslegis"}
"""Graphs of which every run looks at all snapshots; the others are for the slow tests."""


@pytest.fixture(scope="module")
def script() -> Any:
    """``benchmarks/timeline.py``."""
    spec = importlib.util.spec_from_file_location("timeline_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(SCRIPT.parent))  # what scripts share lies beside them
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "length", "least"),
    [
        *(
            pytest.param(name, length, least, marks=pytest.mark.slow)
            for name in ("sx, weekly", "slashdot, 60 slices", "amlsim_20k, daily")
            for length, least in ((10, 8), (4, 4))
        ),
        pytest.param("as733, daily, live", None, 45, marks=pytest.mark.slow),
        ("collegemsg, daily", 4, 4),
    ],
)  # fmt: skip
def test_auto_sends_no_more_than_the_least_of_any_snapshot(
    name: str, length: int | None, least: float, script: Any
) -> None:
    """Nor than int32 coordinates or compressed rows; and ESDG's difference is what the paper's formula gives."""
    stem, *_ = script.SETS[name]
    data = real_file(f"{stem}.parquet").parent
    smoothing = Smoothing() if length is None else Smoothing(kind="edge-life", length=length)
    found = list(script.sent(script.snapshots_of(data, name), smoothing))
    assert len(found) > 10
    for each in found:
        assert each.modes["auto"] <= min(each.modes.values()) + 64
        assert each.modes["auto"] <= min(each.coo32, each.csr32) + 64
    coo32, coo64 = sum(each.coo32 for each in found), sum(each.coo64 for each in found)
    assert coo32 >= least * sum(each.modes["auto"] for each in found)
    if length == 10 and len(found) > 20:  # the first snapshot is told whole, each pair once
        esdg = sum(each.modes["esdg"] for each in found)
        assert 2.1 <= coo32 / esdg <= 2.4
        assert 3.5 <= coo64 / esdg <= 4.0


@pytest.mark.parametrize(
    "stem",
    [
        pytest.param(path.stem, marks=[] if path.stem in SMALL else [pytest.mark.slow])
        for path in sorted(DATA.glob("*.parquet"))
    ],
)
@pytest.mark.parametrize("length", [None, 5])
def test_no_set_has_a_snapshot_of_which_auto_sends_more(
    stem: str, length: int | None, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As live graphs, with their deletes, and smoothed."""
    monkeypatch.setitem(script.SETS, stem, (stem, None, 20))
    smoothing = Smoothing() if length is None else Smoothing(kind="m-product", length=length)
    for each in script.sent(script.snapshots_of(DATA, stem), smoothing):
        assert each.modes["auto"] <= min(each.modes.values()) + 64
