#!/usr/bin/env python3
"""Build the site of the documentation.

    python deploy/site/build.py [--out site]

Zensical builds it from a copy of ``docs/`` below ``.build``. README, CONTRIBUTING and CHANGELOG become pages there, diagrams
images, the names of ``freshet_graph`` a reference, and results and decisions join the navigation of ``mkdocs.yml``. The site
lies in a folder of its version, so that several can stand side by side in ``--out``.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import mmdr
import yaml

import freshet_graph

ROOT = Path(__file__).parents[2]
SCRATCH = ROOT / ".build"
OUTSIDE = {"index.md": "README.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Pages of the site by their sources, which GitHub shows in the root of the repository."""

DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)")


def main() -> int:
    """Build it; 0, or 1 with a line for each link or anchor that leads nowhere."""
    parser = argparse.ArgumentParser(description="Build the site of the documentation.")
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="folder of all versions")
    out = parser.parse_args().out.resolve()
    SCRATCH.mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="site-", dir=SCRATCH) as work:
        return build(Path(work), out)


def build(work: Path, out: Path) -> int:
    """Build it in an empty folder, and put it beside other versions."""
    pages = work / "docs"
    shutil.copytree(ROOT / "docs", pages)
    for page, source in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        (pages / page).write_text(text.replace("](docs/", "]("), encoding="utf-8")
    (pages / "decisions/index.md").write_text(decisions(), encoding="utf-8")
    (pages / "reference.md").write_text(reference(), encoding="utf-8")
    for path in pages.rglob("*.md"):
        path.write_text(for_the_site(path, pages), encoding="utf-8")
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    for section in config["nav"]:
        for folder in ("results", "decisions"):
            if folder.capitalize() in section:
                names = sorted(
                    (path.name for path in (pages / folder).glob("*.md")),
                    key=lambda name: (name != "index.md", name),
                )
                section[folder.capitalize()] += [f"{folder}/{name}" for name in names]
    for plugin in config["plugins"]:
        if "mkdocstrings" in plugin:
            plugin["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT)]
    (work / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    nowhere = [
        f"{path.relative_to(pages)}: {target} is no page of the site"
        for path in sorted(pages.rglob("*.md"))
        for target in LINK.findall(without_code(path.read_text(encoding="utf-8")))
        if not (path.parent / target).exists()
    ]
    print("\n".join(nowhere), end="\n" * bool(nowhere))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", work / "mkdocs.yml"]
    plain = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(
        command, env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode or nowhere:
        print(done.stdout.partition("Traceback")[0])
        return 1
    (version,) = re.findall(
        r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M
    )
    publish(work / "site", out, version)
    print(f"{out / version / 'index.html'}: {len(list((out / version).rglob('*.html')))} pages")
    return 0


def publish(site: Path, out: Path, version: str) -> None:
    """Put a built site beside those of other versions; the newest is what one sees first."""
    shutil.rmtree(out / version, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    shutil.move(site, out / version)
    versions = sorted(
        (path.parent.name for path in out.glob("*/index.html")),
        key=lambda name: [int(part) if part.isdigit() else -1 for part in re.split(r"\W", name)],
        reverse=True,
    )
    listed = [
        {"version": name, "title": name, "aliases": ["latest"] * (name == versions[0])} for name in versions
    ]
    (out / "versions.json").write_text(json.dumps(listed), encoding="utf-8")
    newest = versions[0]
    there = f"{newest}/index.html"
    text = (
        f'<!doctype html><meta http-equiv="refresh" content="0; url={there}">'
        f'<link rel="icon" href="{newest}/assets/images/favicon.png">'  # otherwise a browser asks for /favicon.ico
        f'<a href="{there}">Freshet {newest}</a>'
    )
    (out / "index.html").write_text(text, encoding="utf-8")


def decisions() -> str:
    """The page that lists all decisions."""
    listed = ["# Decisions", ""]
    for path in sorted((ROOT / "docs/decisions").glob("*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        listed.append(f"- [{title.replace('. ', ': ', 1)}]({path.name})")
    return "\n".join(listed)


def reference() -> str:
    """The page of what a program may import, from its docstrings."""
    names = [f"::: freshet_graph.{home}.{name}" for name, home in sorted(freshet_graph._HOMES.items())]
    intro = "What `from freshet_graph import …` gives. [The library](library.md) has examples."
    return "\n\n".join(["# Reference of the library", intro, *names])


def for_the_site(path: Path, pages: Path) -> str:
    """A page with what GitHub reads turned into what the site reads: pages of the root, diagrams, pipes in code."""
    text = path.read_text(encoding="utf-8")
    up = "../" * len(path.relative_to(pages).parent.parts)

    def image(found: re.Match[str]) -> str:
        """One that a phone can open and enlarge; it is drawn for a white ground."""
        name = f"images/{sha256(found[1].encode()).hexdigest()[:12]}.svg"
        (pages / name).write_text(mmdr.render(found[1]).svg(), encoding="utf-8")
        return f'[![Diagram]({up}{name}){{ style="background: white" }}]({up}{name})'

    text = DIAGRAM.sub(image, text)
    text = re.sub(r"\]\(((?:\.\./)*)\.\./(CONTRIBUTING|CHANGELOG)\.md", r"](\1\2.md", text)
    text = re.sub(r"\]\(((?:\.\./)*)decisions/\)", r"](\1decisions/index.md)", text)
    return "\n".join(
        re.sub(r"`[^`\n]*`", lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line
        for line in text.split("\n")
    )


def without_code(text: str) -> str:
    """A page without what stands in code."""
    return re.sub(r"^( *)```.*?^\1```$|`[^`\n]+`", "", text, flags=re.M | re.S)


if __name__ == "__main__":
    sys.exit(main())
