"""A dry run of compaction: it says what compaction then does, and leaves every byte as it was."""

import json
from dataclasses import replace

import pytest
from compacted import grown, indexed, seal
from lane_stream import lane
from placed import files_of
from typer.testing import CliRunner

from freshet_graph.stream.cli import app
from freshet_graph.stream.store.compact.store import Keep, compact, foresee
from freshet_graph.stream.store.errors import ConfigMissingError
from freshet_graph.stream.store.files.sweep import COMPACTION, lock_folder
from freshet_graph.stream.store.log.layout import log_folder

LANES = (lane("distdy"), lane("sep", edge_life=2))


@pytest.fixture(scope="module")
def whole(places):
    return grown(places.new(), *LANES, end=12)


@pytest.mark.parametrize(
    ("keep", "removed"),
    [
        (Keep(), []),
        (Keep(snapshots=4), []),
        (Keep(time_s=3), ["sep"]),
        (Keep(snapshots=99), ["sep", "distdy"]),
    ],
    ids=["nothing", "snapshots", "time and a lane", "all lanes"],
)
def test_it_says_what_compaction_then_does_and_changes_nothing(whole, places, keep, removed):
    store = places.copy(whole)
    before = files_of(store)
    said = foresee(store, keep, remove=removed)
    assert files_of(store) == before
    done = compact(store, keep, always=True, remove=removed)
    assert replace(said, freed_bytes=0, indexed=sorted(said.indexed)) == replace(
        done, freed_bytes=0, indexed=sorted(done.indexed)
    )
    assert said.freed_bytes == pytest.approx(
        done.freed_bytes, abs=200 * max(1, len(removed))
    )  # what locks say
    assert said.freed_bytes > 0


def test_a_lane_that_lags_holds_back_in_a_dry_run_too(places):
    store = grown(places.new(), lane("distdy"), end=4)
    seal(store, 4, 12)
    said = foresee(store, Keep(snapshots=2))
    assert said.held_by == ["distdy"]
    assert said == replace(compact(store, Keep(snapshots=2), always=True), freed_bytes=said.freed_bytes)


def test_after_an_earlier_compaction(places):
    store = indexed(places.new(), *LANES, end=12, kept=8)
    said = foresee(store, Keep(snapshots=4))
    done = compact(store, Keep(snapshots=4), always=True)
    assert (said.dropped, said.folded, said.first) == (done.dropped, done.folded, done.first)
    assert 0 < said.freed_bytes <= done.freed_bytes


def test_it_needs_no_lock_and_names_a_lane_that_is_not_there(whole):
    held = lock_folder(log_folder(whole), "another", COMPACTION)
    try:
        assert foresee(whole, Keep(snapshots=4)).dropped > 0
    finally:
        held.release()
    with pytest.raises(ConfigMissingError, match=r"has no lane 'typo' to remove\. It has distdy, sep"):
        foresee(whole, remove=["typo"])


def test_the_command(tmp_path):
    store = grown(tmp_path / "store", *LANES, end=12)
    before = files_of(store)
    options = ["compact", str(store), "--keep-snapshots", "4"]
    said = json.loads(CliRunner().invoke(app, [*options, "--dry-run", "--json"]).stdout)
    shown = CliRunner().invoke(app, [*options, "--dry-run"])
    assert (shown.exit_code, said["dry_run"]) == (0, True)
    assert "if it were compacted" in shown.stdout
    assert " KiB" in shown.stdout
    assert files_of(store) == before
    done = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)
    assert {**done, "dry_run": True, "indexed": sorted(done["indexed"])} == {
        **said,
        "indexed": sorted(said["indexed"]),
    }
