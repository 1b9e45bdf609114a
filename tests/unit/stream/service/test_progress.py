"""Progress of long work, where nobody watches a terminal."""

import time

import pytest

from freshet_graph.stream.service import progress


def test_each_step_that_lasts_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    monkeypatch.setattr(progress, "PLAIN_S", 0.005)
    monkeypatch.setattr(progress, "note", lambda sentence, *_: noted.append(sentence))

    def lasting(step: int) -> None:
        reached(step, 2, "tgn by pac")
        deadline_s = time.monotonic() + 30
        while len(noted) < step:
            assert time.monotonic() < deadline_s

    with progress.steps("kernels: {} of {} ({})") as reached:
        lasting(1)
        lasting(2)
    assert noted == ["kernels: 1 of 2 (tgn by pac)", "kernels: 2 of 2 (tgn by pac)"]


def test_a_count_may_have_further_counts_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    monkeypatch.setattr(progress, "PLAIN_S", 0.005)
    monkeypatch.setattr(progress, "note", lambda sentence, *_: noted.append(sentence))
    with progress.counting("{:,} of {:,} rows, {:,} snapshots, {:,.0f} per second") as reached:
        reached(1_200, 5_000, 3)
        deadline_s = time.monotonic() + 30
        while not noted:
            assert time.monotonic() < deadline_s
    assert noted[0].startswith("1,200 of 5,000 rows, 3 snapshots, ")
