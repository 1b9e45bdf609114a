"""The costs of an evaluation: seconds and bytes of all ranks, and their peak memory."""

import resource
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.interface import StepReport
from freshet_graph.trainer.wire.traffic import Traffic


def work(reports: Sequence[StepReport], ranks: Ranks) -> dict[str, Any]:
    """Seconds and bytes of all ranks together, from this rank's reports; a collective.

    All ranks learned the same snapshots.
    """
    traffic = Traffic.sum(report.traffic for report in reports)
    purposes = sorted(traffic.begun)  # the same on all ranks, though some may have sent nothing
    own_costs = [
        sum(report.seconds.get("train", 0.0) for report in reports),
        *(traffic.seconds[purpose] for purpose in purposes),
        *(float(traffic.sent_bytes[purpose]) for purpose in purposes),
    ]
    train_s, *costs = ranks.total(own_costs)
    seconds, sent = costs[: len(purposes)], costs[len(purposes) :]
    return {
        "train_s": train_s,
        "wait_s": sum(seconds),
        "comm_seconds": dict(zip(purposes, seconds, strict=True)),
        "sent_bytes": {purpose: int(count) for purpose, count in zip(purposes, sent, strict=True)},
    }


def costs_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Bytes of all runs and mean seconds by purpose, if anything crossed ranks."""
    sent = sum((Counter(run["sent_bytes"]) for run in runs), Counter())
    waited: Counter[str] = Counter()
    for run in runs:
        waited.update(run["comm_seconds"])
    mean_s = {purpose: seconds / len(runs) for purpose, seconds in waited.items()}
    return {"comm_seconds": mean_s, "sent_bytes": dict(sent)} if sent else {}


def of_ranks(number: float, ranks: Ranks) -> list[Any]:
    """A number of each rank, by rank, of the number's type; a collective."""
    return [
        type(number)(total)
        for total in ranks.total([float(number) * (rank == ranks.rank) for rank in range(ranks.size)])
    ]


def mapped_bytes() -> int:
    """Bytes of a store's files that this process has mapped now; 0 where the system has no list of mappings.

    A file's checksum is compared when it is opened, so all of its pages were touched.
    """
    try:
        mappings = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return 0
    ours = [
        line.split(" ", 1)[0].split("-") for line in mappings if line.endswith((".arrow", ".arrow (deleted)"))
    ]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ours)


def peak_mib() -> float:
    """Peak resident memory of this rank, on CUDA the peak of its device memory, in MiB."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
