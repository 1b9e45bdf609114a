"""Small real distributions of others: built as wheels and unpacked where Python finds them, as pip does."""

import subprocess
import sys
import zipfile
from pathlib import Path

from freshet_graph.stream import registry


def install(
    site: Path, name: str, source: str, entry_points: dict[str, str], *, group: str = "freshet.partitioners"
) -> None:
    """Install a distribution of one module, version 1.2.

    Args:
        site: A folder of ``sys.path``.
        name: Of the distribution; its module has underscores.
        source: Of the module.
        entry_points: Name → object of the group.
        group: Theirs.
    """
    module = name.replace("-", "_")
    project = site.parent / f"{name}-project"
    project.mkdir()
    (project / f"{module}.py").write_text(source, encoding="utf-8")
    lines = [f'"{entry}" = "{target}"' for entry, target in entry_points.items()]
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "{name}"\nversion = "1.2"\n[project.entry-points."{group}"]\n'
        + "\n".join(lines)
        + f'\n[tool.hatch.build.targets.wheel]\ninclude = ["{module}.py"]\n',
        encoding="utf-8",
    )
    program = "import sys, hatchling.build; hatchling.build.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", program, str(project)], check=True, cwd=project, capture_output=True
    )
    (wheel,) = project.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    look_again()


def look_again() -> None:
    """Have this process look for entry points again."""
    registry.installed.cache_clear()
    registry.plugins.cache_clear()
