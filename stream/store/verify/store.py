"""Check a whole store: its log, then every lane against it, then its exports."""

from functools import partial

from stream.store.exports.layout import EXPORTS
from stream.store.lane.layout import FOLDER, REMOVED, lane_folder
from stream.store.log.layout import log_folder
from stream.store.places.place import Place, place_of
from stream.store.verify.check import Check, settled
from stream.store.verify.exports import verify_exports
from stream.store.verify.lane import verify_lane
from stream.store.verify.log import verify_log


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
    for folder in sorted((place / FOLDER).glob("*"), key=str):
        name = folder.name
        if not name.endswith(REMOVED) and folder.is_dir():
            look = partial(verify_lane, place, name, against_log=against_log)
            check.add(settled(look, log, lane_folder(place, name)))
    for folder in sorted((place / EXPORTS).glob("*"), key=str):
        if folder.is_dir():
            check.add(verify_exports(place, folder.name))
    return check
