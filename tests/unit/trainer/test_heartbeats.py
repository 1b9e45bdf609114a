"""Who lives among ranks that wait for each other: told by numbers that they count up, in every rank's metrics."""

import pytest
from prometheus_client import generate_latest
from torch.distributed import HashStore

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.trainer.heartbeats import LOST_S, PROCESS, SILENT_S, Heartbeats
from freshet_graph.trainer.metrics import TrainerMetrics


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def ranks_up(metrics: TrainerMetrics) -> dict[str, float]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {
        line.split('rank="')[1][0]: float(line.split()[-1])
        for line in lines
        if line.startswith("freshet_trainer_rank_up{")
    }


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_rank_that_falls_silent_is_zero_at_all_others_and_one_again_once_it_is_heard(clock: Clock) -> None:
    store = HashStore()
    beats = [Heartbeats(store, rank, 3, clock) for rank in range(3)]
    shown = [TrainerMetrics(TrainerConfig(), rank, ranks=3, up=beats[rank].up) for rank in range(3)]
    for metrics in shown:
        metrics.graph("g")
    assert ranks_up(shown[0]) == {"0": 1, "1": 1, "2": 1}, "nobody is taken for dead before it could speak"
    for _ in range(2):
        clock.now_s += SILENT_S
        for rank in (0, 2, 0):  # rank 1 hangs
            beats[rank].beat()
    assert ranks_up(shown[0]) == ranks_up(shown[2]) == {"0": 1, "1": 0, "2": 1}
    beats[1].beat()
    beats[0].beat()
    assert ranks_up(shown[0]) == {"0": 1, "1": 1, "2": 1}


def test_while_the_store_of_the_ranks_is_gone_nobody_is_heard_of_but_oneself(clock: Clock) -> None:
    class Gone:
        def add(self, key: str, amount: int, /) -> int:
            raise RuntimeError("connection refused")

    beats = Heartbeats(Gone(), 1, 2, clock)
    clock.now_s += SILENT_S
    with pytest.raises(RuntimeError, match="refused"):
        beats.beat()
    assert (beats.up(0), beats.up(1)) == (False, True)


def test_an_attempt_ends_with_a_rank_that_falls_silent_for_a_minute_or_begins_again(clock: Clock) -> None:
    store = HashStore()
    beats = [Heartbeats(store, rank, 3, clock) for rank in range(3)]
    for rank in (0, 1):
        store.add(str(rank), PROCESS)
    clock.now_s += 10 * LOST_S
    for rank in (0, 1, 0):
        beats[rank].beat()
    assert beats[0].lost() == "", "rank 2 is waited for as long as it takes"
    clock.now_s += LOST_S - 1
    beats[0].beat()
    assert beats[0].lost() == ""
    clock.now_s += 1
    assert beats[0].lost() == "rank 1 has been silent for 60 seconds"
    beats[1].beat()
    beats[0].beat()
    assert beats[0].lost() == ""
    store.add("1", PROCESS)
    for rank in (0, 1):
        beats[rank].beat()
        assert beats[rank].lost() == "rank 1 began again", "a new process sees it, too"


def test_a_rank_alone_beats_for_nobody() -> None:
    beats = Heartbeats.from_environment()
    assert beats.up(0)
    beats.close()
