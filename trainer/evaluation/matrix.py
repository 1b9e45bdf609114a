"""A matrix of evaluations into one Parquet file: finished cells are skipped, so a killed run resumes.

A cell is a process of its own (``freshet-trainer evaluate``): one that fails or is killed for its memory does not affect
the others, and peak memory is its own. After each cell the whole file is written again and renamed.
"""

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
import yaml
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from freshet_graph.schemas.errors import one_line, system_call
from freshet_graph.schemas.matrix import Matrix, MatrixData
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.schemas.version import version
from freshet_graph.stream.service.config_file import validated
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.json_lines import last_error
from freshet_graph.stream.service.output import notes
from freshet_graph.stream.service.scratch import WITHIN, scratch_folder
from freshet_graph.stream.service.written_table import TableForm, written_table
from freshet_graph.stream.store.files.sweep import new_writer_id
from freshet_graph.stream.store.places.durable import FolderLock, sync_file, sync_folder
from freshet_graph.trainer.evaluation.progress import LogFollower
from freshet_graph.trainer.evaluation.split import parse_shares
from freshet_graph.trainer.scoring.metrics import warn_of
from freshet_graph.trainer.shutdown import WITH_PARENT
from freshet_graph.trainer.strategies.cost_model import AUTO
from freshet_graph.trainer.validation import require_evaluable

FIGURES = ("ap", "macro_f1", "auroc", "mse")
"""Default figures: the first that a cell has."""

LARGE = 100
"""A mean from here on, such as of bytes, is shown without decimals."""

BASELINES = (
    "edgebank", "edgebank_window", "recency", "recency_popularity", "activity", "majority", "last_label", "zero", "mean",
    "persistence", "age_persistence",
)  # fmt: skip
"""Scorers of an evaluation that do not depend on its model."""

_Place = tuple[str, str, int]
"""Data, lane, ranks."""

_NO_FIGURES = {"model", "lane", "ranks", "seed", "data", "seconds"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One model, or one of ``BASELINES``, on one data set, over seeds.

    Attributes:
        mean: Over the seeds that have the figure; None: none has.
        sd: Sample standard deviation; None: fewer than two seeds.
        seeds: How many seeds have the figure.
        failed: How many cells ended with an error.
    """

    model: str
    data: str
    lane: str
    ranks: int
    figure: str
    mean: float | None
    sd: float | None
    seeds: int
    failed: int

    def shown(self) -> str:
        """For people: ``0.9123 ± 0.0012``, and the number of failed cells."""
        if self.mean is None:
            return "failed" if self.failed else "–"
        decimals = 4 if abs(self.mean) < LARGE else 0
        spread = "" if self.sd is None else f" ± {self.sd:,.{decimals}f}"
        return f"{self.mean:,.{decimals}f}{spread}{f' ({self.failed} failed)' if self.failed else ''}"


def entries(rows: Sequence[Mapping[str, Any]], figure: str | None) -> list[Entry]:
    """Summarise cells over their seeds, in the order of the cells; then the baselines that have the figure.

    Args:
        rows: One per cell, as in the file of results.
        figure: Its column; None: the first of ``FIGURES`` that a cell has.

    Raises:
        Failure: No cell has the figure, though some has others.
    """
    known = sorted(
        {key for row in rows for key, value in row.items() if isinstance(value, float)} - _NO_FIGURES
    )
    if figure is not None and known and figure not in known:
        raise Failure(f"--figure {figure}: no cell has it. Cells have {', '.join(known)}")
    figure = figure or next((name for name in FIGURES if name in known), known[0] if known else FIGURES[0])
    models: dict[tuple[str, _Place], list[Mapping[str, Any]]] = {}
    for row in rows:
        models.setdefault((row["model"], (row["data"], row["lane"], row["ranks"])), []).append(row)
    table_entries = []
    for (model, place), group in models.items():
        failed = sum(row["error"] is not None for row in group)
        table_entries.append(_entry(model, place, figure, [row.get(figure) for row in group], failed))
    for place, scorer in product(dict.fromkeys(place for _, place in models), BASELINES):
        groups = {model: group for (model, where), group in models.items() if where == place}
        sides = _sides(groups, f"{scorer}_{figure}")
        for names, by_seed in sides:
            of = "" if len(sides) == 1 else f" of {', '.join(names)}"
            table_entries.append(_entry(f"{scorer} (baseline{of})", place, figure, list(by_seed.values()), 0))
    return table_entries


def _entry(model: str, place: _Place, figure: str, values: Sequence[float | None], failed: int) -> Entry:
    known = [value for value in values if value is not None]
    data, lane, ranks = place
    return Entry(
        model, data, lane, ranks, figure,
        mean=statistics.fmean(known) if known else None,
        sd=statistics.stdev(known) if len(known) > 1 else None,
        seeds=len(known),
        failed=failed,
    )  # fmt: skip


def _sides(
    groups: Mapping[str, Sequence[Mapping[str, Any]]], column: str
) -> list[tuple[list[str], dict[int, float]]]:
    """Models beside which a baseline has the same figures, and these by seed; its moment is that of the model beside it."""
    sides: list[tuple[list[str], dict[int, float]]] = []
    for model, group in groups.items():
        by_seed = {row["seed"]: row[column] for row in group if row.get(column) is not None}
        same = next(
            (
                side
                for side in sides
                if all(side[1].get(seed, by_seed[seed]) == by_seed[seed] for seed in by_seed)
            ),
            None,
        )
        if by_seed and same is None:
            sides.append(([model], by_seed))
        elif by_seed and same is not None:
            same[0].append(model)
            same[1].update(by_seed)
    return sides


def as_dicts(table_entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Entries for JSON."""
    return [asdict(entry) for entry in table_entries]


def render(table_entries: Sequence[Entry], form: TableForm) -> str:
    """The table of one figure: a row per model (with lane and ranks if there are several), a column per data set.

    ``form`` is text for a terminal, or as in ``written_table``.
    """
    data = _short([entry.data for entry in table_entries])
    several = [
        name for name in ("lane", "ranks") if len({getattr(entry, name) for entry in table_entries}) > 1
    ]
    rows: dict[str, dict[str, Entry]] = {}
    for entry in table_entries:
        more = [entry.lane if name == "lane" else _counted(entry.ranks, "rank") for name in several]
        rows.setdefault(", ".join([entry.model, *more]), {})[entry.data] = entry
    header = ["model", *data.values()]
    lines = [
        [name, *(cells[one].shown() if one in cells else "–" for one in data)] for name, cells in rows.items()
    ]
    if form != "text":
        return written_table(header, lines, form)
    table = Table(*header)
    for line in lines:
        table.add_row(*line)
    console = Console(
        width=max(80, 4 + sum(3 + max(map(len, column)) for column in zip(header, *lines, strict=True)))
    )
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")


def caption(table_entries: Sequence[Entry]) -> str:
    """A sentence about the table."""
    seeds = sorted({entry.seeds for entry in table_entries if entry.seeds} or {0})
    most = _counted(seeds[-1], "seed")
    counted = most if len(seeds) == 1 else f"{seeds[0]} to {most}"
    return f"{table_entries[0].figure if table_entries else ''}: mean ± standard deviation over {counted}"


def _counted(number: int, of: str) -> str:
    return f"{number} {of}{'' if number == 1 else 's'}"


def _short(files: Sequence[str]) -> dict[str, str]:
    """Names of files without folder and ending, if they are still distinct."""
    names = {file: Path(file).name.split(".")[0] for file in files}
    return names if len(set(names.values())) == len(names) else {file: file for file in names}


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

CHOICE = {"choice": pa.string()}
"""Strategy and lane under ``auto``, predicted seconds and reason, as JSON; null where both are named."""

SETTLED = {"model", "strategy", "ranks", "seeds", "runs"}
"""Keys of an evaluation's result that a row holds in another form."""

NOT_COMPARED = (
    "metrics", "store", "checkpoint", "checkpoint_every", "keep_checkpoints", "exports", "seed", "scoring", "serve",
)  # fmt: skip
"""Keys of a configuration that an evaluation ignores, or that a row holds in another form."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One evaluation.

    Attributes:
        model: Its name in the matrix.
        lane: Its name in the matrix.
        config: With the cell's seed.
        ranks: Number of ranks.
        source: The file, its columns and its negatives.
        folder: The matrix's, for files that are not in the working directory.
        data_hash: sha256 of the file's content.
        split: As on the command line.
        masked_nodes: As on the command line.
    """

    model: str
    lane: str
    config: TrainerConfig
    ranks: int
    source: MatrixData
    folder: Path
    data_hash: str
    split: str
    masked_nodes: float

    @property
    def data(self) -> str:
        """Its name in the matrix: without one the file as the matrix has it, wherever it is."""
        return self.source.name or self.source.file

    @property
    def negatives(self) -> str | None:
        """Path of the file of negatives; None without one."""
        return None if self.source.negatives is None else located(self.source.negatives, self.folder)

    @property
    def compared(self) -> dict[str, Any]:
        """The part of the configuration that decides the result."""
        whole = self.config.model_dump(mode="json")
        return {key: value for key, value in whole.items() if key not in NOT_COMPARED}

    @property
    def config_hash(self) -> str:
        """Hash of configuration, split, options of the file, hidden nodes, and whether there is a file of negatives."""
        said = {**self.compared, "split": self.split, "negatives": self.source.negatives is not None}
        said |= self.source.given
        if self.masked_nodes:
            said["masked_nodes"] = self.masked_nodes
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    @property
    def negatives_hash(self) -> str | None:
        """sha256 of the present content of the file of negatives; None without one, or before a cell has made it."""
        negatives = self.negatives
        return file_hash(negatives) if negatives is not None and Path(negatives).exists() else None

    @property
    def key(self) -> tuple[Any, ...]:
        """The columns of ``IDENTITY``."""
        return (
            self.model, self.lane, self.ranks, self.config.seed, self.data, self.data_hash,
            self.config_hash, self.negatives_hash,
        )  # fmt: skip


def located(name: str, folder: Path) -> str:
    """Path of a file that a matrix names: as seen from the working directory or, if it is not there, from ``folder``."""
    beside = folder / name
    return str(beside) if beside.exists() and not Path(name).exists() else name


def cells(matrix: Matrix, folder: Path = Path()) -> list[Cell]:
    """All cells, each once and with a valid configuration, by their seeds: the first seed alone makes a table.

    Args:
        matrix: The matrix.
        folder: That of its file, where data are looked for if they are not in the working directory.

    Raises:
        Failure: A file cannot be read, or a cell's configuration is wrong; the sentence names the cell.
    """
    parse_shares(matrix.split)
    digests: dict[str, str] = {}
    valid_cells: dict[tuple[Any, ...], Cell] = {}
    for data, model, lane, ranks, seed in chain.from_iterable(
        product(
            block.data or matrix.data,
            block.models or matrix.models,
            block.lanes or matrix.lanes,
            block.ranks or matrix.ranks,
            block.seeds or matrix.seeds,
        )
        for block in matrix.blocks
    ):
        if data.file not in digests:
            digests[data.file] = _data_hash(data.file, folder)
        keys = {
            **matrix.config,
            **data.config,
            **model.config,
            **lane.config,
            "lane": lane.lane,
            "seed": seed,
        }
        name = lane.name or lane.lane
        where = f"model {model.name} on lane {name} of {data.name or data.file}"
        config = validated(TrainerConfig, keys, where)
        try:
            require_evaluable(config, ranks)
        except Failure as error:
            raise Failure(f"{where}: {error}") from None
        cell = Cell(
            model.name,
            name,
            config,
            ranks,
            data,
            folder,
            digests[data.file],
            matrix.split,
            matrix.masked_nodes,
        )
        valid_cells.setdefault(cell.key, cell)
    return sorted(valid_cells.values(), key=lambda cell: cell.config.seed)


def run_matrix(
    matrix: Matrix, out: str | Path, figure: str | None = None, folder: Path = Path()
) -> dict[str, Any]:
    """Run all cells that the file of results does not have, and those that failed before.

    Args:
        matrix: The cells.
        out: Parquet; rows of other cells stay.
        figure: The figure in ``results``; None: AP or, for labels, AUROC.
        folder: As for ``cells``.

    Returns:
        ``file, cells, run, skipped, failed, seconds``, and ``results`` of all cells: each model on each data set
        (``matrix_table.Entry``). ``cautions`` of evaluations, with their data, if there are any.

    Raises:
        Failure: The matrix is wrong, ``out`` is not a file of results, or negatives changed meanwhile.
        LaneBusyError: Another run writes the same results.
    """
    path, began = Path(out), time.monotonic()
    every = cells(matrix, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(
        path.parent, new_writer_id(), f"{path.name}.lock", "name another file with the option --out"
    )
    try:
        rows = {_key(row): row for row in read_results(path)}
        results = [rows.get(cell.key) for cell in every]
        waiting = [place for place, row in enumerate(results) if row is None or row["error"] is not None]
        failed = 0
        with notes.status("") as status:  # seen on a terminal only
            for number, place in enumerate(waiting, 1):
                cell = every[place]
                log.info(
                    "cell", number=number, of=len(waiting), model=cell.model, lane=cell.lane,
                    data=cell.data, ranks=cell.ranks, seed=cell.config.seed,
                )  # fmt: skip
                where = (
                    f"cell {number} of {len(waiting)}, {cell.model} on {cell.data}, seed {cell.config.seed}"
                )
                _show(status, where)
                rows.pop(cell.key, None)  # it failed; the negatives that it makes now are part of its new key
                row = evaluated(cell, partial(_show, status, where))
                results[place] = rows[_key(row)] = row
                write_results(path, list(rows.values()))
                if row["error"] is not None:
                    failed += 1
                    log.warning("cell failed", model=cell.model, data=cell.data, error=row["error"])
    finally:
        lock.release()
    all_rows = [row for row in results if row is not None]
    for cell, row in zip(every, all_rows, strict=True):
        if row["error"] is None and _key(row) != cell.key:
            raise Failure(
                f"the negatives {cell.source.negatives} changed after a cell was judged by them. Start the command again, "
                "which evaluates such cells by the new ones"
            )
    # They are about the data's labels, so equal for its models and seeds.
    data_cautions = {(row["data"], row["cautions"]) for row in all_rows if row.get("cautions")}
    cautions = [{"data": data, **entry} for data, text in sorted(data_cautions) for entry in json.loads(text)]
    for caution in cautions:
        warn_of(caution)
    return {
        "file": str(path),
        "cells": len(every),
        "run": len(waiting),
        "skipped": len(every) - len(waiting),
        "failed": failed,
        "seconds": time.monotonic() - began,
        "results": as_dicts(entries(all_rows, figure)),
        **({"cautions": cautions} if cautions else {}),
    }


def _show(status: Status, *parts: str) -> None:
    status.update(Text(", ".join(parts)))


def evaluated(cell: Cell, progress: Callable[[str], None]) -> dict[str, Any]:
    """A cell's row: the result that its process printed, or its last error; ``progress`` gets sentences for people."""
    began, negatives = time.monotonic(), cell.negatives
    with scratch_folder("matrix") as folder:
        config = folder / "trainer.yaml"
        config.write_text(yaml.safe_dump(cell.config.model_dump(mode="json")), encoding="utf-8")
        command = [
            sys.executable, "-m", "freshet_graph.trainer.cli", "evaluate", "--config", str(config),
            "--data", located(cell.source.file, cell.folder), "--split", cell.split, "--ranks", str(cell.ranks), "--json",
            *(["--negatives", negatives] if negatives else []),
            *cell.source.flags,
            *(["--masked-nodes", str(cell.masked_nodes)] if cell.masked_nodes else []),
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
        "choice": None,
    }
    if process.returncode != 0:
        ended = f"the evaluation ended with exit code {process.returncode}"
        return {**row, "error": last_error(logged) or ended}
    result = json.loads(printed)
    if "cautions" in result:
        row["cautions"] = json.dumps(result["cautions"])
    if AUTO in (cell.config.strategy, cell.config.lane):
        keys = ("strategy", "lane", "predicted_s", "reason")
        row["choice"] = json.dumps({key: result[key] for key in keys if key in result})
    (run,) = result["runs"]  # a cell has one seed
    figures = {key: value for key, value in run.items() if key.startswith("validation_")}
    figures |= {key: value for key, value in result.items() if key not in SETTLED}
    figures |= {key: max(value) for key, value in figures.items() if key.startswith("rank_")}
    if "sent_bytes" in figures:
        figures["sent_bytes"] = sum(figures["sent_bytes"].values())
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
    about = {**ABOUT, **CAUTIONS, **CHOICE}
    figures = sorted({key for row in rows for key in row} - IDENTITY.keys() - about.keys())
    schema = pa.schema([*IDENTITY.items(), *((name, pa.float64()) for name in figures), *about.items()])
    temporary = path.with_name(path.name + ".tmp")
    with system_call("write", temporary):
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary)
    sync_file(temporary)
    temporary.replace(path)
    sync_folder(path.parent)


def _data_hash(name: str, folder: Path) -> str:
    path = located(name, folder)
    try:
        return file_hash(path)
    except Failure as error:
        if Path(path).exists() or Path(name).is_absolute():
            raise
        raise Failure(
            f"{error}. It was looked for in {Path.cwd()}, the working directory, and in {folder.absolute()}, that of the "
            "matrix. Correct its path, or run the command in the folder of the data"
        ) from None


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
