"""``freshet-trainer inspect``: what a run has learned, and what ``auto`` chose for it."""

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.output import Debug, Json, finish, print_json, print_table
from freshet_graph.trainer.commands.ranks import ConfigFile


def inspect(file: ConfigFile, json: Json = False, debug: Debug = False) -> None:
    """Show what a run has learned so far, its lane and strategy, and why auto chose them. A trainer may keep running.

    Example: freshet-trainer inspect --config trainer.yaml
    """

    def body() -> None:
        from freshet_graph.trainer.service import result
        from freshet_graph.trainer.session.checkpoint import lane_of_checkpoint

        config = load_config(TrainerConfig, file)
        lane = lane_of_checkpoint(config) or config.lane
        totals = result(config.model_copy(update={"lane": lane}), since=0)
        if not totals["snapshots"]:
            raise Failure(
                f"{config.checkpoint} has no snapshot of a run. Start freshet-trainer run, or name its folder in the key "
                "checkpoint"
            )
        shown = {key: value for key, value in totals.items() if key != "cautions"}
        print_json(totals) if json else print_table(f"{config.model} on lane {lane}", shown)

    finish(body, debug=debug)
