"""Hooks of MkDocs, beside ``mkdocs.yml``: pages from outside ``docs/``, and navigation that follows the folders."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OUTSIDE = {"index.md": "README.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Pages of the site by their sources, which GitHub shows in the root of the repository."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add each page of ``docs/results`` and ``docs/decisions`` to the navigation, by name."""
    for section in config.nav or []:
        for folder in ("results", "decisions"):
            if folder.capitalize() in section:
                pages = sorted(path.name for path in (ROOT / "docs" / folder).glob("*.md"))
                index = ["decisions/index.md"] if folder == "decisions" else []
                section[folder.capitalize()] += index + [f"{folder}/{name}" for name in pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside, and the list of all decisions."""
    for page, source in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = text.replace("](docs/decisions/)", "](decisions/index.md)").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    listed = ["# Decisions", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        listed.append(f"- [{title.replace('. ', ': ', 1)}]({path.name})")
    files.append(File.generated(config, "decisions/index.md", content="\n".join(listed)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Turn what GitHub reads into what MkDocs reads: pages outside ``docs/``, the list of decisions, pipes in code."""
    markdown = re.sub(r"\]\(((?:\.\./)*)\.\./(CONTRIBUTING|CHANGELOG)\.md", r"](\1\2.md", markdown)
    markdown = re.sub(r"\]\(((?:\.\./)*)decisions/\)", r"](\1decisions/index.md)", markdown)
    cells = re.compile(r"`[^`\n]*`")
    return "\n".join(
        cells.sub(lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line
        for line in markdown.split("\n")
    )
