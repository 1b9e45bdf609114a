"""The model of an evaluation, left behind in a folder that ``Predictor``, ``export`` and ``run`` read."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from freshet_graph.schemas.errors import system_call
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.evaluation.split import Split
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.checkpoint import Checkpoints, identity
from freshet_graph.trainer.session.session import Session

CONFIG, STORE, CHECKPOINTS = "trainer.yaml", "store", "checkpoints"
ABOUT_FILE = {"parts", "lane_params", "interval_s", "edge_life"}
"""Keys by which ``evaluate`` made the store, which now has them."""


def require_no_model(folder: Path) -> None:
    """Check before hours of work that a model can be left in a folder.

    Raises:
        Failure: It has files, or there is no folder around it.
    """
    if not folder.absolute().parent.is_dir() or (
        folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    ):
        raise Failure(f"--model-out {folder}: it must be a new or empty folder in one that exists")


def leave_model(
    folder: Path,
    config: TrainerConfig,
    store: str,
    lane: LaneReader,
    ranks: Ranks,
    chosen: tuple[Mapping[str, Any], Any],
    split: Split,
) -> None:
    """Write the store, two checkpoints and the configuration that names them; a collective.

    The checkpoints are those after the snapshot in which the validation ends, with the memory that the test began from, and
    after the last of all. Both have the same weights, which saw no event of the test: the model passes over the lane without
    learning.

    Args:
        folder: New or empty.
        config: Of the evaluation.
        store: Of the evaluation; copied.
        lane: Its lane.
        ranks: All ranks.
        chosen: Weights and the strategy's state after the best epoch.
        split: By time.

    Raises:
        OSError: The disk refuses.
    """
    weights, memory = chosen
    session = Session(config, lane, ranks)
    session.model.load_state_dict(weights)
    checkpoints = Checkpoints(folder / CHECKPOINTS, keep=2)
    manifests = list(lane.manifests)
    border = [one for one in manifests if one.tau * lane.header.interval_us <= split.validate_until_us][-1]
    for manifest in manifests:
        beat()
        session.pass_over(manifest)
        if manifest is border:
            session.strategy.restore(memory)
        elif manifest is not manifests[-1]:
            continue
        state = session.state()
        if ranks.rank == 0:
            about = {"identity": identity(config, lane), "log_events_checksum": manifest.log_events_checksum}
            checkpoints.save(manifest.sequence, state | about)
    session.close()
    if ranks.rank != 0:
        return
    with system_call("write", folder):
        shutil.copytree(store, folder / STORE, dirs_exist_ok=True)
        places = {
            "store": str((folder / STORE).absolute()),
            "checkpoint": str((folder / CHECKPOINTS).absolute()),
        }
        keys = config.model_dump(mode="json", exclude_unset=True, exclude=ABOUT_FILE) | places
        (folder / CONFIG).write_text(yaml.safe_dump(keys, sort_keys=False), encoding="utf-8")
