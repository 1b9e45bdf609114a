"""Check a whole store: its log, then every lane against it, then its exports."""

from functools import partial

from freshet_graph.schemas.exports import ExportCommit, ExportKind
from freshet_graph.stream.store.errors import RetainedError, StoreError
from freshet_graph.stream.store.exports import EXPORTS, ExportReader, commit_name
from freshet_graph.stream.store.lane.layout import FOLDER, REMOVED, lane_folder
from freshet_graph.stream.store.log.layout import log_folder
from freshet_graph.stream.store.places.place import Place, place_of
from freshet_graph.stream.store.verify.check import Check, settled
from freshet_graph.stream.store.verify.lane import verify_lane
from freshet_graph.stream.store.verify.log import verify_log


def verify_exports(store: Place, name: str) -> Check:
    """Check the exports under one name; may run beside a trainer."""
    check = Check()
    try:
        reader = ExportReader(store, name)
        for number in range(reader.commits.first, len(reader.commits)):
            try:
                _verify(reader, reader.commits[number], check)
            except RetainedError:
                continue  # removed just now
            except StoreError as error:
                check.report(str(error))
    except StoreError as error:
        check.report(str(error))
    return check


def _verify(reader: ExportReader, commit: ExportCommit, check: Check) -> None:
    check.read(reader.root / commit_name(commit.number))
    kinds: tuple[ExportKind, ...] = ("embeddings", "scores")
    for kind, rows in zip(kinds, (commit.num_embeddings, commit.num_scores), strict=True):
        if (reference := commit.file(kind)) is None:
            continue
        table = reader.table(commit, kind)
        check.read(reader.root / reference.path)
        if table is not None and len(table) != rows:
            check.report(
                f"{reader.root / reference.path} has {len(table)} rows, export {commit.number} says {rows}"
            )


def verify(store: str | Place) -> Check:
    """Check checksums, chains and invariants of a store; may run beside writers and compaction.

    A check that finds a problem starts again if the log or lane was compacted since it began, because unnamed files may be
    missing. In a bucket every file is fetched, whatever copies this machine has.

    Args:
        store: Folder of the store, or its address.

    Raises:
        ConfigMissingError: There is no store at this place.
        OSError: A bucket refuses or does not answer.
    """
    with place_of(store).apart() as place:
        return _look(place)


def _look(place: Place) -> Check:
    log = log_folder(place)
    check = Check()
    check.add(settled(partial(verify_log, place), log))
    against_log = check.ok
    for name in sorted((place / FOLDER).names()):
        if not name.endswith(REMOVED) and (place / FOLDER / name).is_dir():
            look = partial(verify_lane, place, name, against_log=against_log)
            check.add(settled(look, log, lane_folder(place, name)))
    for name in sorted((place / EXPORTS).names()):
        if (place / EXPORTS / name).is_dir():
            check.add(verify_exports(place, name))
    return check
