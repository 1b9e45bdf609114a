"""A whole store checked: its log, then every lane against it."""

from stream.store.lane.layout import FOLDER, REMOVED
from stream.store.places.place import Place, place_of
from stream.store.verify.check import Check
from stream.store.verify.lane import verify_lane
from stream.store.verify.log import verify_log


def verify(store: str | Place) -> Check:
    """Check checksums, chains and invariants of a store; may run beside writers.

    Args:
        store: Folder of the store.

    Returns:
        All problems found, files and bytes read.

    Raises:
        ConfigMissingError: There is no store at this place.
    """
    check = verify_log(store)
    against_log = check.ok
    lanes: list[Place] = [*(place_of(store) / FOLDER).glob("*")]
    for folder in sorted(lanes, key=str):
        if folder.is_dir() and not folder.name.endswith(REMOVED):
            check.add(verify_lane(store, folder.name, against_log=against_log))
    return check
