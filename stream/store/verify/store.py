"""A whole store checked: its log, then every lane against it, then what was exported."""

from stream.store.exports.layout import EXPORTS
from stream.store.lane.layout import FOLDER, REMOVED, lane_folder, lane_names
from stream.store.log.index import index_numbers
from stream.store.log.layout import log_folder
from stream.store.places.cache import apart
from stream.store.places.place import Place, place_of
from stream.store.verify.check import Check
from stream.store.verify.exports import verify_exports
from stream.store.verify.lane import verify_lane
from stream.store.verify.log import verify_log

MOST_LOOKS = 5
"""How often a store is looked at while each look finds problems and snapshots are dropped meanwhile."""


def verify(store: str | Place) -> Check:
    """Check checksums, chains and invariants of a store; may run beside writers and compaction.

    Where compaction dropped snapshots during a look that misses files, the store is looked at again: they may be those.
    Of a store in a bucket every file is fetched, whatever copies this machine has.

    Args:
        store: Folder of the store, or its address.

    Returns:
        All problems found, files and bytes read.

    Raises:
        ConfigMissingError: There is no store at this place.
        OSError: A bucket refuses, or nobody answers.
    """
    with apart(place_of(store)) as place:
        for _ in range(MOST_LOOKS):
            before = _indexes(place)
            check = _look(place)
            if check.ok or _indexes(place) == before:
                break
    return check


def _indexes(store: Place) -> dict[str, list[int]]:
    """Numbers of all indexes of log and lanes: a new one comes before anything is dropped."""
    folders = {"log": log_folder(store)} | {name: lane_folder(store, name) for name in lane_names(store)}
    return {name: index_numbers(folder) for name, folder in folders.items()}


def _look(place: Place) -> Check:
    check = verify_log(place)
    against_log = check.ok
    folders: list[Place] = [*(place / FOLDER).glob("*")]
    going = {folder.name.removesuffix(REMOVED) for folder in folders if folder.name.endswith(REMOVED)}
    for folder in sorted(folders, key=str):
        name = folder.name
        if not name.endswith(REMOVED) and name not in going and folder.is_dir():
            check.add(verify_lane(place, name, against_log=against_log))
    exported: list[Place] = [*(place / EXPORTS).glob("*")]
    for folder in sorted(exported, key=str):
        if folder.is_dir():
            check.add(verify_exports(place, folder.name))
    return check
