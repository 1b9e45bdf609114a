"""Checkpoints: the state that a run resumes from, one file per snapshot, whole or absent.

1. The state and its checksum are written to a temporary file in the same folder, and flushed to disk.
2. The file is renamed to ``<sequence>.pt``; the folder is flushed to disk.
3. Older checkpoints beyond the wanted number are removed. If that fails, the next write tries again.

A crash before 2 leaves a temporary file that the next write removes; after 2 the checkpoint exists. Files hold tensors
and plain values only and are read with torch's weights-only loader, so no code can hide in them.

A run resumes from the newest one, after it was checked against configuration and lane.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
import xxhash

from freshet_graph.schemas.errors import one_line, system_call
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.errors import LaneBusyError
from freshet_graph.stream.store.files.data import checksum
from freshet_graph.stream.store.files.sweep import CleanUp, new_writer_id
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.places.durable import (
    FolderLock,
    fsync_ancestors,
    make_folders,
    sync_file,
    sync_folder,
)
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.cost_model import AUTO
from freshet_graph.trainer.tasks.interface import TASKS

FORMAT = 2
LET_GO_S = 10.0
"""How long a start waits for an ending trainer. Ranks of a killed launcher notice its end within a second."""

_SUFFIX = ".pt"
_TEMPORARY = ".pt.tmp"
_MARK = b"xxh64:"
"""Followed by 16 hexadecimal digits, after the bytes that they sum. torch's reader ignores both."""

_TAIL_BYTES = len(_MARK) + 16
_REMEDY = "Remove it to continue from the one before, or from the beginning"


class Checkpoints:
    """The checkpoints of one folder.

    Args:
        folder: Created when first written to.
        keep: Newest checkpoints kept.
    """

    def __init__(self, folder: str | Path, keep: int) -> None:
        self.folder = Path(folder)
        self._keep = keep
        self._clean_up = CleanUp(self.folder)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder, which is created if missing, so that no second trainer overwrites this one's files.

        Raises:
            LaneBusyError: Another trainer holds the lock and does not release it.
            Failure: The folder cannot be created or written to.
        """
        otherwise = "choose another folder in the key checkpoint"
        try:
            make_folders(self.folder)
            fsync_ancestors(self.folder)  # its creator may have been killed before it was durable
            lock = self._locked(otherwise)
        except OSError as error:
            raise Failure(
                f"folder {self.folder} of checkpoints cannot be used: {one_line(error)}. Or {otherwise}"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def save(self, sequence: int, state: dict[str, Any]) -> Path:
        """Write the checkpoint after lane snapshot ``sequence``: nested dictionaries of tensors, arrays and plain values.

        Raises:
            OSError: The disk refuses; older checkpoints stay as they are.
        """
        if make_folders(self.folder):
            fsync_ancestors(self.folder)
        self._clean_up.add_removal(self.folder.glob(f"*{_TEMPORARY}"))
        self._clean_up.run()
        path = self.folder / f"{sequence:016d}{_SUFFIX}"
        temporary = path.with_suffix(_TEMPORARY)
        try:
            with temporary.open("wb") as file:
                torch.save({"format": FORMAT, "sequence": sequence, **_tensors(state)}, file)
                file.flush()
                file.write(_MARK + checksum(temporary).encode())
            sync_file(temporary)
        except Exception as error:
            temporary.unlink(missing_ok=True)  # a full disk has no room for half a file
            if (refusal := _refusal(error)) is not None:
                with system_call("write", temporary):
                    raise refusal from None
            raise
        temporary.replace(path)
        sync_folder(self.folder)
        self._clean_up.add_removal(self._paths()[: -self._keep])
        self._clean_up.run()
        return path

    def _locked(self, otherwise: str) -> FolderLock:
        until = time.monotonic() + LET_GO_S
        while True:
            try:
                return FolderLock(self.folder, new_writer_id(), otherwise=otherwise)
            except LaneBusyError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def newest_path(self) -> Path | None:
        """File of the newest checkpoint; None without one."""
        return next(reversed(self._paths()), None)

    def newest(self, until: int | None = None) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint, arrays as tensors on the CPU; None without one.

        Args:
            until: Number of the last snapshot that it may be after; None: any.

        Raises:
            Failure: The file is damaged or of another format; the sentence names it.
            OSError: The disk refuses, or there is not enough memory, which says nothing about the file.
        """
        path = next(
            (path for path in reversed(self._paths()) if until is None or int(path.stem) <= until), None
        )
        if path is None:
            return None
        _require_checksum(path)
        return path, _read(path, path)

    def sequences(self) -> Iterator[int]:
        """Numbers of the snapshots that the checkpoints are after, oldest first."""
        return (int(path.stem) for path in self._paths())

    def _paths(self) -> list[Path]:
        return sorted(path for path in self.folder.glob(f"*{_SUFFIX}") if path.stem.isdigit())


def _require_checksum(path: Path) -> None:
    """Compare a checkpoint with its checksum. Older ones have none.

    Raises:
        Failure: They differ.
        OSError: The disk refuses.
    """
    digest, tail = xxhash.xxh64(), b""
    with system_call("read", path), path.open("rb") as file:
        while piece := file.read(1 << 20):
            tail += piece
            digest.update(tail[:-_TAIL_BYTES])
            tail = tail[-_TAIL_BYTES:]
    if tail.startswith(_MARK) and tail != _MARK + digest.hexdigest().encode():
        raise Failure(f"checkpoint {path} is damaged: it differs from its checksum. {_REMEDY}")


def _read(path: Path, source: Path | BytesIO) -> dict[str, Any]:
    """The state in a checkpoint's file ``path``, or in its bytes."""
    try:
        state = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:
        if (refusal := _refusal(error)) is not None:
            with system_call("read", path):
                raise refusal from None
        raise Failure(f"checkpoint {path} cannot be read ({type(error).__name__}). {_REMEDY}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        format_found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise Failure(f"checkpoint {path} has format {format_found}, this release reads {FORMAT}")
    return state


def _mark(path: Path) -> str:
    """The checksum that ends a checkpoint's file; empty without the file, or if it is of an older release."""
    if not path.exists():
        return ""
    with system_call("read", path), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        tail = file.read()
    return tail.decode() if tail.startswith(_MARK) else ""


def _refusal(error: BaseException | None) -> OSError | None:
    """The operating system's error behind an error of torch's reader or writer."""
    while error is not None and not (isinstance(error, OSError) and error.errno is not None):
        error = error.__context__
    return error


def _tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tensors(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.asarray(value, order="C"))  # a single number keeps its shape
    return value


BEFORE_THERE_WAS_A_CHOICE = {"history_moment": "batch", "task": "link-prediction"}
"""Values of keys that older checkpoints do not name."""


def identity(config: TrainerConfig, lane: LaneReader) -> dict[str, Any]:
    """The settings that must not change between a checkpoint and its continuation."""
    task = TASKS.options(config.task, config.task_params)
    return {
        "graph": lane.log.header.graph,
        "lane": lane.header.lane,
        "lane_checksum": lane.header.checksum,
        "model": config.model,
        "model_params": json.dumps(config.model_params, sort_keys=True),
        "strategy": config.strategy,
        "strategy_params": json.dumps(config.strategy_params, sort_keys=True),
        "window": config.window,
        "horizon": config.horizon,
        "smoothing": config.smoothing.model_dump_json(),
        "history_moment": config.history_moment,
        "task": config.task,
        "task_params": task.model_dump_json() if task.model_dump(exclude_defaults=True) else None,
        "seed": config.seed,
    }


def with_strategy(config: TrainerConfig, name: str) -> TrainerConfig:
    """A configuration with a strategy that was chosen under ``auto``, which has no parameters."""
    return config.model_copy(update={"strategy": name, "strategy_params": {}})


def chosen(config: TrainerConfig, state: dict[str, Any]) -> TrainerConfig:
    """A configuration with the strategy that a checkpoint was made by."""
    return with_strategy(config, state["choice"]["strategy"]) if config.strategy == AUTO else config


def lane_of_checkpoint(config: TrainerConfig) -> str | None:
    """The lane that the newest checkpoint was made on; None without a checkpoint.

    Raises:
        Failure: It is damaged.
    """
    newest = Checkpoints(config.checkpoint, config.keep_checkpoints).newest()
    return None if newest is None else str(newest[1]["identity"]["lane"])


def oldest_checkpoint(config: TrainerConfig) -> int | None:
    """The snapshot's number of the oldest checkpoint of the configured folder; None without one."""
    return next(Checkpoints(config.checkpoint, config.keep_checkpoints).sequences(), None)


def newest_checkpoint(
    config: TrainerConfig, lane: LaneReader, until: int | None = None
) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint of the configured folder, after snapshot number ``until`` at most; None without one.

    Raises:
        Failure: It is damaged, or of another configuration, lane or log; the sentence names the key.
    """
    newest = Checkpoints(config.checkpoint, config.keep_checkpoints).newest(until)
    if newest is None:
        return None
    path, state = newest
    configured = identity(config, lane)
    with content_of(path):
        sequence, checksum = int(state["sequence"]), state["log_events_checksum"]
        made_with = dict(state.get("identity", {}))
    unsaid = {key: configured[key] for key in ("graph", "horizon", "smoothing")}  # by older checkpoints
    of_task = made_with.get("target") if config.task == "node-regression" else configured["task_params"]
    unsaid["task_params"] = of_task  # older checkpoints named a target alone
    made_with = {**BEFORE_THERE_WAS_A_CHOICE, **unsaid, **made_with}
    for key, value in configured.items():
        if made_with.get(key) == value:
            continue
        if key == "graph":
            raise Failure(
                f"checkpoint {path} was made on another store, of graph {made_with[key]}; {config.store} is of graph {value}. "
                "Choose another folder in the key checkpoint"
            )
        if key == "lane_checksum":
            raise Failure(
                f"checkpoint {path} was made on another lane {lane.header.lane}, which {config.store} no longer has: it was "
                "made again, or with other parameters. Choose another folder in the key checkpoint"
            )
        raise Failure(
            f"checkpoint {path} was made with {key} = {made_with.get(key)}, the configuration has "
            f"{value}. Choose another folder in the key checkpoint, or configure the same"
        )
    lane.refresh()
    if sequence >= len(lane.manifests) or lane.manifests[sequence].log_events_checksum != checksum:
        raise Failure(
            f"checkpoint {path} is after snapshot number {sequence}, which lane {lane.header.lane} of "
            f"{config.store} doesn't have with these events. Choose another folder in the key checkpoint"
        )
    return path, state


def checkpoint_of_first(
    config: TrainerConfig, lane: LaneReader, ranks: Ranks
) -> tuple[Path, dict[str, Any]] | None:
    """The ``newest_checkpoint`` of rank 0's folder, on every rank; a collective.

    Only rank 0 writes checkpoints. What another host has in its folder is used if it is the same file, by its checksum; if
    any rank lacks it, rank 0 sends it to all.

    Raises:
        Failure: See ``newest_checkpoint``; on all ranks.
    """
    newest = ranks.on_first(lambda: newest_checkpoint(config, lane))
    name, _, mark = ranks.text_from_first(f"{newest[0].name} {_mark(newest[0])}" if newest else "").partition(
        " "
    )
    if not name:
        return None
    path = Path(config.checkpoint) / name
    has_it = newest is not None or (mark != "" and _mark(path) == mark)
    (missing,) = ranks.any(not has_it)
    content = (
        ranks.bytes_from_first(newest[0].read_bytes() if newest else b"", "checkpoint") if missing else b""
    )
    if newest is not None:
        return newest
    if has_it:
        _require_checksum(path)
    return path, _read(path, path if has_it else BytesIO(content))


@contextmanager
def content_of(path: Path) -> Iterator[None]:
    """Turn what is wrong in a checkpoint into a sentence: a key that is missing, or weights of other widths.

    Raises:
        Failure: The block met it.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        what = shorten(f"{type(error).__name__}: {one_line(error)}", 300)
        raise Failure(
            f"checkpoint {path} has other content than this release writes for this model ({what}). Remove it to continue "
            "from the one before, or choose another folder in the key checkpoint"
        ) from error
