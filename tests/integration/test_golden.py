"""Stores and checkpoints of earlier releases open in this one; those of later ones are refused in a sentence."""

import json
import tarfile
from pathlib import Path

import pytest
import torch
from small_trainers import EVENT_MODEL, config_for
from trainer_invoked import RUNNER, invoke, write

from freshet_graph import Predictor, open_store
from freshet_graph.stream.store.log.arrivals import Arrivals
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.sealed import UNKNOWN
from freshet_graph.stream.store.verify.store import verify
from freshet_graph.trainer.cli import app
from freshet_graph.trainer.session.checkpoint import FORMAT, Checkpoints

GOLDEN = Path(__file__).parents[1] / "golden"
KINDS = {"snapshot-model": {}, "event-model": EVENT_MODEL}


def keys_of(kind: str, folder: Path) -> dict:
    """A configuration file's keys: those of the archive's makers (deploy/release/golden.py)."""
    config = config_for(folder, checkpoint=str(folder / kind), **KINDS[kind])
    return config.model_dump(mode="json") | {"metrics": {"port": 0}}


@pytest.fixture(params=sorted(path.name for path in GOLDEN.iterdir()))
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store and checkpoints after four of its six snapshots."""
    with tarfile.open(GOLDEN / request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_an_earlier_store_is_whole_and_is_read(earlier: Path) -> None:
    result = verify(str(earlier / "store"))
    assert (result.ok, result.problems) == (True, [])
    store = open_store(str(earlier / "store"))
    assert store.events().num_rows > 0
    assert [graph.tau for graph in store.window("hash", 2)] == [4, 5]


def test_with_which_commits_earlier_events_came_is_unknown(earlier: Path) -> None:
    log = LogReader(earlier / "store")
    assert all(set(log.arrivals(snapshot.tau)) == {UNKNOWN} for snapshot in log.snapshots)
    (arrived,) = Arrivals(log).new()
    names = ["src", "dst", "t", "op"]
    assert arrived.commit == UNKNOWN
    assert arrived.events.select(names).equals(log.sealed_events().select(names).combine_chunks())


@pytest.mark.parametrize("kind", KINDS)
def test_an_earlier_checkpoint_is_continued(kind: str, earlier: Path) -> None:
    config = write(earlier, **keys_of(kind, earlier))
    assert Predictor(config).sequence == 3
    status, printed, errors = invoke("run", "--config", config, "--until-idle", "0.1")
    assert status == 0, errors
    assert (printed["snapshots"], printed["total_snapshots"]) == (2, 6)


def test_what_a_later_release_wrote_is_refused_in_a_sentence(earlier: Path) -> None:
    keys = keys_of("snapshot-model", earlier)
    path = Checkpoints(earlier / "snapshot-model", 1).newest_path()
    assert path is not None
    torch.save({"format": FORMAT + 1, "sequence": 3}, path)
    refused = RUNNER.invoke(app, ["run", "--config", write(earlier, **keys), "--until-idle", "0.1"])
    assert refused.exit_code == 1
    assert f"has format {FORMAT + 1}, this release reads {FORMAT}" in refused.stderr

    header = earlier / "store" / "log" / "log.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "format_version": 99}), encoding="utf-8")
    with pytest.raises(Exception, match="99"):
        open_store(str(earlier / "store"))
