"""Pictures of the documentation: each shows the data beside it, and its caption has the command that makes both."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import matplotlib.image
import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs" / "images"
PICTURES = {
    "demo": ("deploy/demo/report.py", "make demo", "json"),
    "dashboard": ("deploy/grafana/picture.py", "python deploy/grafana/picture.py", "json"),
    "scheduling": (
        "benchmarks/scheduling.py",
        "python benchmarks/scheduling.py --only scale --figure",
        "csv",
    ),
    "snapshot_loss": (
        "benchmarks/loss_curves.py",
        "python benchmarks/loss_curves.py --days 120 --figure",
        "csv",
    ),
}
"""By name: the script that draws it, the beginning of its command, and the kind of its data."""
SMALL_BYTES = 100 << 10


def loaded(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_picture_has_a_caption_with_its_command_and_a_link_to_its_data() -> None:
    captions = {}
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for target, caption in re.findall(r"^!\[[^\]]+\]\(([^)]+)\)\n\n(\*[^*].*\*)$", text, re.MULTILINE):
            captions[Path(target).stem] = caption
    assert set(captions) == {path.stem for path in IMAGES.glob("*.png")} == set(PICTURES)
    for name, (_, command, kind) in PICTURES.items():
        assert f"`{command}" in captions[name]
        assert f"images/{name}.{kind})" in captions[name]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_the_data_beside_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, _, kind = PICTURES[name]
    monkeypatch.syspath_prepend(str((ROOT / script).parent))
    data = IMAGES / f"{name}.{kind}"
    assert data.stat().st_size < SMALL_BYTES
    loaded(ROOT / script).draw_from(data, tmp_path / "again.png")
    again, kept = (matplotlib.image.imread(path) for path in (tmp_path / "again.png", IMAGES / f"{name}.png"))
    assert again.shape == kept.shape
    assert np.abs(again - kept).mean() < 0.002  # fonts are drawn a little differently elsewhere
