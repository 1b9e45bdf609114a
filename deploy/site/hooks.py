"""Hooks of MkDocs, beside ``mkdocs.yml``: pages from outside ``docs/``, navigation by folders, diagrams as images."""

import re
from hashlib import sha256
from pathlib import Path

import mmdr
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[2]
OUTSIDE = {"index.md": "README.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Pages of the site by their sources, which GitHub shows in the root of the repository."""

DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)


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
    """Add the pages from outside, the list of all decisions, and an image of each diagram."""
    for page, source in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = text.replace("](docs/decisions/)", "](decisions/index.md)").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    listed = ["# Decisions", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        listed.append(f"- [{title.replace('. ', ': ', 1)}]({path.name})")
    files.append(File.generated(config, "decisions/index.md", content="\n".join(listed)))
    for page in files.documentation_pages():
        for text in DIAGRAM.findall(page.content_string):
            if files.get_file_from_path(_image(text)) is None:
                files.append(File.generated(config, _image(text), content=mmdr.render(text).svg()))
    return files


def _image(diagram: str) -> str:
    """The path of a diagram's image in the site."""
    return f"images/{sha256(diagram.encode()).hexdigest()[:12]}.svg"


def _shown(image: str) -> str:
    """An image that a phone can open and enlarge; it is drawn for a white ground."""
    return f'[![Diagram]({image}){{ style="background: white" }}]({image})'


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn what GitHub reads into what MkDocs reads: pages outside ``docs/``, diagrams, pipes in code."""
    markdown = DIAGRAM.sub(
        lambda found: _shown(get_relative_url(_image(found[1]), page.file.src_uri)), markdown
    )
    markdown = re.sub(r"\]\(((?:\.\./)*)\.\./(CONTRIBUTING|CHANGELOG)\.md", r"](\1\2.md", markdown)
    markdown = re.sub(r"\]\(((?:\.\./)*)decisions/\)", r"](\1decisions/index.md)", markdown)
    cells = re.compile(r"`[^`\n]*`")
    return "\n".join(
        cells.sub(lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line
        for line in markdown.split("\n")
    )
