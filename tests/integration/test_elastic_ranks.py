"""``run --ranks MIN:MAX``: a rank that dies is done without, and ``group`` learns the same bits all the same."""

import json
from pathlib import Path

import torch
from trainer_processes import PATIENCE_S, configure, number_of, ranks_of, scored, started, until
from trainer_streams import held_back, make_lane, meetings

from freshet_graph.trainer.session.checkpoint import Checkpoints

SNAPSHOTS = 8
EVERY = 2


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found = Checkpoints(folder / "checkpoints", 1).newest()
    assert found is not None
    return found[1]["model"]


def test_ranks_die_one_after_the_other_and_the_rest_learn_what_one_rank_learns(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=meetings(snapshots=SNAPSHOTS, a_snapshot=60), parts=2)
    keys = {"strategy": "group", "model": "wdgcn", "horizon": 5, "store": str(tmp_path / "store")}
    steps = [held_back(tmp_path / "store", "hash", after) for after in (2 * EVERY, EVERY)][::-1]
    killed = tmp_path / "killed"
    killed.mkdir()
    with started("run", "--config", str(configure(killed, **keys)), "--ranks", "1:3", "--json") as process:
        for number, go_on in enumerate(steps, 1):
            until(lambda number=number: len(scored(killed)) == number * EVERY, "snapshots")
            numbered = {number_of(rank): rank for rank in ranks_of(process)}
            assert max(numbered) == 3 - number, "one fewer than before"
            numbered[3 - number].kill()
            go_on()
        until(lambda: len(scored(killed)) == SNAPSHOTS, "all snapshots")
        numbered = {number_of(rank) for rank in ranks_of(process)}
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert max(numbered) == 0, "one is left"
    assert json.loads(out)["snapshots"] == SNAPSHOTS
    attempts = [line["attempt"] for line in map(json.loads, err.splitlines()) if "attempt" in line]
    assert {0, 1, 2} == set(attempts)
    alone = tmp_path / "alone"
    alone.mkdir()
    with started("run", "--config", str(configure(alone, **keys)), "--until-idle", "0", "--json") as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    straight = weights(alone)
    assert all(torch.equal(value, straight[name]) for name, value in weights(killed).items())
    assert [line["loss"] for line in scored(killed)] == [line["loss"] for line in scored(alone)]
