"""A defect of our own ends a run with its sentence; only a lost peer is worth another attempt."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from structlog.testing import capture_logs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher import api as launcher_api
from torch.distributed.launcher.api import LaunchConfig

from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.commands.ranks import in_ranks
from freshet_graph.trainer.launch import MAX_RESTARTS, RankRange, failed_before, launch
from freshet_graph.trainer.lost_peer import PeerLostError
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.wire.link import ProcessLink


def shape_error() -> None:
    torch.ones(2, 3) @ torch.ones(2, 3)


def assertion() -> None:
    assert not shape_error, "an assertion of ours"


def failure() -> None:
    raise Failure("a sentence for users")


def system_exit_of_a_library() -> None:
    raise MemoryError("no room")


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process is a rank of a launcher, which reads the file."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("FRESHET_RUN_OUTCOME", str(tmp_path))
    return tmp_path / "failure"


@pytest.mark.parametrize(
    ("work", "told", "logged"),
    [
        (shape_error, "mat1 and mat2 shapes cannot be multiplied", True),
        (assertion, "an assertion of ours", True),
        (system_exit_of_a_library, "no room", True),
        (failure, "a sentence for users", False),
    ],
)
def test_a_defect_of_ours_ends_the_run_with_its_sentence(work, told: str, logged: bool, rank: Path) -> None:
    with capture_logs() as logs:
        assert in_ranks(None, work) is None, "exit code 0: the launcher does not start it again"
    assert told in rank.read_text()
    assert failed_before()
    unexpected = [line for line in logs if line["event"] == "unexpected error"]
    assert len(unexpected) == int(logged), "a defect is logged with its traceback"
    called = []
    assert in_ranks(None, lambda: called.append(1)) is None
    assert not called, "the others of a later attempt do not begin"


GLOO = RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")


def failing(error: Exception, *, at_once: bool) -> Callable[..., SimpleNamespace]:
    """A collective that fails when it begins, or while it is waited for."""

    def fails() -> None:
        raise error

    return lambda *_, **__: fails() if at_once else SimpleNamespace(wait=fails)


@pytest.mark.parametrize(
    ("error", "at_once"),
    [(dist.DistBackendError("NCCL error"), True), (dist.DistNetworkError("timed out"), False), (GLOO, False)],
)
@pytest.mark.parametrize(("size", "name"), [(2, "all_to_all_single"), (3, "all_reduce")])
def test_a_lost_peer_is_worth_another_attempt(
    error: Exception, at_once: bool, size: int, name: str, rank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, name, failing(error, at_once=at_once))

    def work() -> None:
        Ranks(0, size).maximum([1])

    with pytest.raises(PeerLostError, match="rank 0 lost another rank"):
        in_ranks(None, work)
    assert not rank.exists(), "nothing keeps the next attempt from working"
    assert not failed_before()


@pytest.mark.parametrize(
    ("error", "lost"), [(RuntimeError("an assertion on the device"), False), (dist.DistError(), True)]
)
def test_on_a_device_only_errors_of_the_collective_are_a_lost_peer(
    error: RuntimeError, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a wait raises the errors of earlier kernels, too."""
    monkeypatch.setattr(dist, "broadcast", failing(error, at_once=False))
    pending = ProcessLink(1, 2).broadcast(torch.empty(3, device="meta"))
    with pytest.raises(RuntimeError) as raised:
        pending.wait()
    assert isinstance(raised.value, PeerLostError) == lost


@pytest.mark.parametrize(("received", "sent"), [([2], [2]), ([3], [3]), ([2, 1], [1, 1])])
def test_blocks_that_are_not_the_tensors_are_a_defect(
    received: list[int], sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gloo would say so while it is waited for, as it says that a peer is lost."""
    monkeypatch.setattr(dist, "all_to_all_single", lambda *_, **__: pytest.fail("it began"))
    with pytest.raises(ValueError, match="rows to send"):
        ProcessLink(0, 1).all_to_all(torch.empty(3), torch.empty(2), received, sent)


def test_an_error_of_our_own_at_the_beginning_of_a_collective_is_no_lost_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dist, "broadcast", failing(GLOO, at_once=True))
    with pytest.raises(RuntimeError) as raised:
        ProcessLink(0, 2).broadcast(torch.empty(3))
    assert not isinstance(raised.value, PeerLostError)


def test_alone_a_defect_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        in_ranks(None, shape_error)


def test_a_number_of_ranks_or_a_range_is_read() -> None:
    assert RankRange.parse("2") == (2, 2)
    assert RankRange.parse("1:4") == (1, 4)
    for wrong in ("0", "0:2", "3:2", "1:2:3", "-1", "two", "", ":", "1:"):
        with pytest.raises(ValueError, match=r"such as 4 or 1:4|one rank at least"):
            RankRange.parse(wrong)


def test_each_death_leaves_one_rank_fewer_until_the_fewest_are_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []

    def launcher(settings: LaunchConfig, _program: str) -> Callable[..., None]:
        def start(*_arguments: str) -> None:
            started.append((settings.nproc_per_node, settings.max_restarts))
            raise ChildFailedError("freshet_graph.trainer.cli", {0: ProcessFailure(0, 1, -9, "")})

        return start

    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(launcher_api, "elastic_launch", launcher)
    with pytest.raises(Failure, match=rf"ranks died {MAX_RESTARTS + 3} times, the last with exit code -9"):
        launch(["run"], RankRange(1, 3))
    assert started == [(3, 0), (2, 0), (1, MAX_RESTARTS)]
