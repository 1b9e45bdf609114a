"""A whole store checked: its log, then every lane against it, then what was exported."""

from functools import partial

from stream.store.exports.layout import EXPORTS
from stream.store.lane.layout import FOLDER, REMOVED, lane_folder
from stream.store.log.layout import log_folder
from stream.store.places.place import Place, place_of
from stream.store.verify.check import Check
from stream.store.verify.compacted import settled
from stream.store.verify.exports import verify_exports
from stream.store.verify.lane import verify_lane
from stream.store.verify.log import verify_log


def verify(store: str | Place) -> Check:
    """Check checksums, chains and invariants of a store; may run beside writers and compaction.

    Where something seems wrong and a log or lane was compacted since the look at it began, the look begins again: files
    may be missing that nothing names any more.
    Of a store in a bucket every file is fetched, whatever copies this machine has.

    Args:
        store: Folder of the store, or its address.

    Returns:
        All problems found, files and bytes read.

    Raises:
        ConfigMissingError: There is no store at this place.
        OSError: A bucket refuses, or nobody answers.
    """
    with place_of(store).apart() as place:
        return _look(place)


def _look(place: Place) -> Check:
    log = log_folder(place)
    check = Check()
    check.add(settled(partial(verify_log, place), log))
    against_log = check.ok
    folders: list[Place] = [*(place / FOLDER).glob("*")]
    for folder in sorted(folders, key=str):
        name = folder.name
        if not name.endswith(REMOVED) and folder.is_dir():
            look = partial(verify_lane, place, name, against_log=against_log)
            check.add(settled(look, log, lane_folder(place, name)))
    exported: list[Place] = [*(place / EXPORTS).glob("*")]
    for folder in sorted(exported, key=str):
        if folder.is_dir():
            check.add(verify_exports(place, folder.name))
    return check
