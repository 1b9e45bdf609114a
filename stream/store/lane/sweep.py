"""Remove files that no manifest of a lane names: remains of a crash, and replaced states."""

import re
from itertools import islice

from freshet_graph.schemas.store import LaneManifest
from freshet_graph.stream.store.errors import ConfigMissingError
from freshet_graph.stream.store.files.records import Numbered, read_record
from freshet_graph.stream.store.files.sweep import (
    TAU,
    remove,
    require_own_folders,
    superseded,
    temporary,
    unnamed,
)
from freshet_graph.stream.store.lane.layout import COMMITS, SNAPSHOTS, STATE, manifest_name
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.places.interface import last_step
from freshet_graph.stream.store.places.place import Place

KEPT_STATES = 2
_STATE = re.compile(r"-?\d+\.arrow")


def sweep_lane(root: Place, reader: LaneReader) -> None:
    """Remove remains of a crash: files that no manifest names; only a writer with the lock may."""
    require_own_folders(root, (COMMITS, SNAPSHOTS, STATE))

    def folder(tau: int) -> str:
        try:
            return read_record(root / manifest_name(tau), LaneManifest).assignment.path.split("/")[1]
        except ConfigMissingError:
            reader.refresh()
            if tau in reader.taus:
                raise
            return ""  # compaction has dropped it since: no record names any of them

    left = [
        *superseded(root / SNAPSHOTS, reader.taus, folder, TAU),
        *old_states(root, reader.manifests),
        *temporary(root),
        *temporary(root / COMMITS),
    ]
    newest = reader.manifests[-1].tau if reader.manifests else 0
    remove((root / manifest_name(newest)).outdated(left))


def newest_states(manifests: Numbered[LaneManifest]) -> list[LaneManifest]:
    """The snapshots whose states are kept, newest first."""
    return list(islice((manifest for manifest in reversed(manifests) if manifest.state), KEPT_STATES))


def old_states(root: Place, manifests: Numbered[LaneManifest]) -> list[Place]:
    """Files of the state folder other than the newest two states."""
    newest = {last_step(manifest.state.path) for manifest in newest_states(manifests) if manifest.state}
    return unnamed(root / STATE, newest, _STATE)
