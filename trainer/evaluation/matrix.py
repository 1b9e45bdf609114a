"""A matrix of evaluations into one Parquet file: finished cells are skipped, so a killed run resumes.

A cell is a process of its own (``freshet-trainer evaluate``): one that fails or is killed for its memory does not affect
the others, and peak memory is its own. After each cell the whole file is written again and renamed.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
import yaml
from rich.status import Status
from rich.text import Text

from schemas.errors import one_line, system_call
from schemas.matrix import Matrix, MatrixData
from schemas.trainer_config import TrainerConfig
from schemas.version import version
from stream.service.config_file import validated
from stream.service.failure import Failure
from stream.service.json_lines import last_error
from stream.service.output import notes
from stream.service.scratch import WITHIN, scratch_folder
from stream.store.files.sweep import new_writer_id
from stream.store.places.durable import FolderLock, sync_file, sync_folder
from trainer.evaluation.matrix_table import as_dicts, entries
from trainer.evaluation.progress import LogFollower
from trainer.evaluation.split import parse_shares
from trainer.scoring.ranking import warn_of
from trainer.shutdown import WITH_PARENT
from trainer.workable import require_evaluable

log = structlog.get_logger()

IDENTITY = {
    "model": pa.string(),
    "lane": pa.string(),
    "ranks": pa.int64(),
    "seed": pa.int64(),
    "data": pa.string(),
    "data_hash": pa.string(),
    "config_hash": pa.string(),
    "negatives_hash": pa.string(),
}
"""Columns that identify a cell. Hashes are sha256, hex."""

ABOUT = {
    "config": pa.string(),
    "split": pa.string(),
    "version": pa.string(),
    "finished": pa.timestamp("s", "UTC"),
    "seconds": pa.float64(),
    "error": pa.string(),
}

CAUTIONS = {"cautions": pa.string()}
"""Of an evaluation's result, as JSON; null without any, and absent from older files."""

SETTLED = {"model", "strategy", "ranks", "seeds", "runs"}
"""Keys of an evaluation's result that a row holds in another form."""

NOT_COMPARED = ("metrics", "store", "checkpoint", "checkpoint_every", "keep_checkpoints", "exports", "seed")
"""Keys of a configuration that an evaluation ignores, or that a row holds in another form."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One evaluation.

    Attributes:
        model: Its name in the matrix.
        config: With the cell's seed.
        ranks: Number of ranks.
        source: The file, its columns and its negatives.
        data_hash: sha256 of the file's content.
        split: As on the command line.
    """

    model: str
    config: TrainerConfig
    ranks: int
    source: MatrixData
    data_hash: str
    split: str

    @property
    def data(self) -> str:
        """The file."""
        return self.source.file

    @property
    def compared(self) -> dict[str, Any]:
        """The part of the configuration that decides the result."""
        whole = self.config.model_dump(mode="json")
        return {key: value for key, value in whole.items() if key not in NOT_COMPARED}

    @property
    def config_hash(self) -> str:
        """Hash of configuration, split, columns, and whether there is a file of negatives."""
        said = {**self.compared, "split": self.split, "negatives": self.source.negatives is not None}
        if self.source.columns is not None:
            said["columns"] = self.source.columns
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    @property
    def negatives_hash(self) -> str | None:
        """sha256 of the present content of the file of negatives; None without one, or before a cell has made it."""
        negatives = self.source.negatives
        return file_hash(negatives) if negatives is not None and Path(negatives).exists() else None

    @property
    def key(self) -> tuple[Any, ...]:
        """The columns of ``IDENTITY``."""
        return (
            self.model, self.config.lane, self.ranks, self.config.seed, self.data, self.data_hash,
            self.config_hash, self.negatives_hash,
        )  # fmt: skip


def cells(matrix: Matrix) -> list[Cell]:
    """All cells, each with a valid configuration.

    Raises:
        Failure: A file cannot be read, or a cell's configuration is wrong; the sentence names the cell.
    """
    parse_shares(matrix.split)
    digests = {data.file: file_hash(data.file) for data in matrix.data}
    found = []
    for data, model, lane, ranks, seed in product(
        matrix.data, matrix.models, matrix.lanes, matrix.ranks, matrix.seeds
    ):
        keys = {
            **matrix.config,
            **data.config,
            **model.config,
            **lane.config,
            "lane": lane.lane,
            "seed": seed,
        }
        where = f"model {model.name} on lane {lane.lane} of {data.file}"
        config = validated(TrainerConfig, keys, where)
        try:
            require_evaluable(config, ranks)
        except Failure as error:
            raise Failure(f"{where}: {error}") from None
        found.append(Cell(model.name, config, ranks, data, digests[data.file], matrix.split))
    return found


def run_matrix(matrix: Matrix, out: str | Path, figure: str | None = None) -> dict[str, Any]:
    """Run all cells that the file of results does not have, and those that failed before.

    Args:
        matrix: The cells.
        out: Parquet; rows of other cells stay.
        figure: The figure in ``results``; None: AP or, for labels, AUROC.

    Returns:
        ``file, cells, run, skipped, failed, seconds``, and ``results`` of all cells: each model on each data set
        (``matrix_table.Entry``). ``cautions`` of evaluations, with their data, if there are any.

    Raises:
        Failure: The matrix is wrong, ``out`` is not a file of results, or negatives changed meanwhile.
        LaneBusyError: Another run writes the same results.
    """
    path, began = Path(out), time.monotonic()
    every = cells(matrix)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(
        path.parent, new_writer_id(), f"{path.name}.lock", "name another file with the option --out"
    )
    try:
        rows = {_key(row): row for row in read_results(path)}
        results = [rows.get(cell.key) for cell in every]
        waiting = [at for at, row in enumerate(results) if row is None or row["error"] is not None]
        failed = 0
        with notes.status("") as status:  # seen on a terminal only
            for number, at in enumerate(waiting, 1):
                cell = every[at]
                log.info(
                    "cell", number=number, of=len(waiting), model=cell.model, lane=cell.config.lane,
                    data=cell.data, ranks=cell.ranks, seed=cell.config.seed,
                )  # fmt: skip
                where = (
                    f"cell {number} of {len(waiting)}, {cell.model} on {cell.data}, seed {cell.config.seed}"
                )
                _show(status, where)
                rows.pop(cell.key, None)  # it failed; the negatives that it makes now are part of its new key
                row = evaluated(cell, partial(_show, status, where))
                results[at] = rows[_key(row)] = row
                write_results(path, list(rows.values()))
                if row["error"] is not None:
                    failed += 1
                    log.warning("cell failed", model=cell.model, data=cell.data, error=row["error"])
    finally:
        lock.release()
    found = [row for row in results if row is not None]
    for cell, row in zip(every, found, strict=True):
        if row["error"] is None and _key(row) != cell.key:
            raise Failure(
                f"the negatives {cell.source.negatives} changed after a cell was judged by them. Start the command again, "
                "which evaluates such cells by the new ones"
            )
    # They are about the data's labels, so equal for its models and seeds.
    told = {(row["data"], row["cautions"]) for row in found if row.get("cautions")}
    cautions = [{"data": data, **each} for data, text in sorted(told) for each in json.loads(text)]
    for caution in cautions:
        warn_of(caution)
    return {
        "file": str(path),
        "cells": len(every),
        "run": len(waiting),
        "skipped": len(every) - len(waiting),
        "failed": failed,
        "seconds": time.monotonic() - began,
        "results": as_dicts(entries(found, figure)),
        **({"cautions": cautions} if cautions else {}),
    }


def _show(status: Status, *parts: str) -> None:
    status.update(Text(", ".join(parts)))


def evaluated(cell: Cell, progress: Callable[[str], None]) -> dict[str, Any]:
    """A cell's row: the result that its process printed, or its last error; ``progress`` gets sentences for people."""
    began, negatives = time.monotonic(), cell.source.negatives
    with scratch_folder("matrix") as folder:
        config = folder / "trainer.yaml"
        config.write_text(yaml.safe_dump(cell.config.model_dump(mode="json")), encoding="utf-8")
        command = [
            sys.executable, "-m", "trainer.cli", "evaluate", "--config", str(config), "--data", cell.data,
            "--split", cell.split, "--ranks", str(cell.ranks), "--json",
            *(["--negatives", negatives] if negatives else []),
            *(["--columns", cell.source.columns] if cell.source.columns else []),
        ]  # fmt: skip
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {WITH_PARENT: "1", WITHIN: str(folder)},
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            followed = LogFollower(process.stderr, progress)
            try:
                printed, logged = process.stdout.read(), followed.text()
            except BaseException:
                process.kill()
                raise
    row: dict[str, Any] = {
        **dict(zip(IDENTITY, cell.key, strict=True)),
        "config": json.dumps(cell.compared, sort_keys=True),
        "split": cell.split,
        "version": version(),
        "finished": datetime.now(UTC).replace(microsecond=0),
        "seconds": time.monotonic() - began,
        "error": None,
        "cautions": None,
    }
    if process.returncode != 0:
        ended = f"the evaluation ended with exit code {process.returncode}"
        return {**row, "error": last_error(logged) or ended}
    result = json.loads(printed)
    if "cautions" in result:
        row["cautions"] = json.dumps(result["cautions"])
    figures = {key: value for key, value in result.items() if key not in SETTLED}
    return {**row, **{key: float(value) for key, value in figures.items() if isinstance(value, int | float)}}


def read_results(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of results; empty without a file.

    Raises:
        Failure: It is not a file of results.
    """
    if not path.exists():
        return []
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise Failure(f"--out {path} cannot be read: {one_line(error)}") from None
    missing = [name for name in (*IDENTITY, *ABOUT) if name not in table.column_names]
    if missing:
        raise Failure(f"--out {path} is not a file of results: it has no column {missing[0]}. Name another")
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def write_results(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write all rows, with a column for every figure of any row; the file is always whole, the old one or the new one."""
    about = {**ABOUT, **CAUTIONS}
    figures = sorted({key for row in rows for key in row} - IDENTITY.keys() - about.keys())
    schema = pa.schema([*IDENTITY.items(), *((name, pa.float64()) for name in figures), *about.items()])
    temporary = path.with_name(path.name + ".tmp")
    with system_call("write", temporary):
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary)
    sync_file(temporary)
    temporary.replace(path)
    sync_folder(path.parent)


def file_hash(path: str | Path) -> str:
    """sha256 of a file's content, hex.

    Raises:
        Failure: It cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in IDENTITY)
