"""Stores forged with care: files changed, and every length, checksum and link of the records made to fit again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from placed import write

from freshet_graph.stream.store.files.data import checksum
from freshet_graph.stream.store.files.records import canonical, checksum_of
from freshet_graph.stream.store.places.place import Place


def refit(store: Path) -> None:
    """Make all records fit the data files as they lie there, as someone with the format's description could."""
    log = store / "log"
    link = json.loads((log / "log.json").read_text())["checksum"]
    events: dict[int, str] = {}
    commits: dict[int, str] = {}
    for path in sorted((log / "commits").glob("*.json")):
        content = json.loads(path.read_text())
        if path.stem == f"{0:016d}" or commits:  # else those before it were folded into an index
            content["previous"] = link
        commits[content["n"]] = link = _refitted(log, path, content)
        events |= {snapshot["tau"]: snapshot["events"]["checksum"] for snapshot in content["sealed"]}
    for path in (log / "index").glob("*.json"):
        content = json.loads(path.read_text())
        _refitted(log, path, content | {"commit": commits[content["n"]]})
    for lane in sorted((store / "lanes").glob("*")):
        link, header = "", json.loads((lane / "lane.json").read_text())["checksum"]
        for path in sorted((lane / "commits").glob("*.json"), key=lambda path: int(path.stem)):
            content = json.loads(path.read_text()) | {"lane_checksum": header}
            if content["sequence"] == 0 or link:
                content["previous"] = link
            content["log_events_checksum"] = events.get(content["tau"], content["log_events_checksum"])
            link = _refitted(lane, path, content)
        for path in (lane / "index").glob("*.json"):
            _refitted(lane, path, json.loads(path.read_text()) | {"lane_checksum": header})


def reforged(path: Place, **changes: Any) -> None:
    """A record with other content and a checksum that fits it."""
    content = json.loads(path.read_bytes()) | changes
    write(path, canonical({**content, "checksum": checksum_of(content)}))


def _refitted(root: Path, path: Path, content: dict[str, Any]) -> str:
    for reference in _references(content):
        file = root / reference["path"]
        if file.exists():
            reference |= {"bytes": file.stat().st_size, "checksum": checksum(file)}
    link = checksum_of(content)
    path.write_bytes(canonical(content | {"checksum": link}))
    return link


def _references(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, dict):
        if content.keys() == {"path", "bytes", "checksum"}:
            yield content
        for value in content.values():
            yield from _references(value)
    elif isinstance(content, list):
        for value in content:
            yield from _references(value)
