"""The cost model's input, measured on a session and its lane: the link, sizes, and seconds of a pass; and what a lane costs."""

import time
from collections.abc import Callable, Mapping
from itertools import pairwise

import psutil
import torch

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.store import LaneManifest
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.models.interface import SnapshotModel
from freshet_graph.trainer.models.stages import GraphStage
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.strategies.cost_model import Load, Setup
from freshet_graph.trainer.tasks.interface import SnapshotExamples

PROBE = "probe"
"""The purpose of the collectives that measure the link."""
PROBES = 5
PROBE_BYTES = 1 << 20
"""To each rank: long enough that its bytes count, and not its latency."""
FREE_SHARE = 0.5
"""Of the free memory at the start that saved tensors may take."""
TRIALS = 3
"""Measured passes of a trial: the median of three ignores one that other work disturbed."""


def trial_seconds(session: Session, examples: SnapshotExamples) -> list[float]:
    """Seconds of computing of ``TRIALS`` passes over a snapshot's examples, after one that compiles; a collective.

    The session learns from them. Of event models the whole pass is measured, waits included, because the cost model does
    not count their collectives.

    Returns:
        Of the slowest rank, the same on all; empty if nothing could be learned.
    """
    ranks, seconds = session.ranks, []
    for epoch in range(1 + TRIALS):
        before, began = ranks.traffic.copy(), time.perf_counter()
        report = session.strategy.learn([examples], epoch)
        pass_s = time.perf_counter() - began
        if session.model.kind == "snapshot":
            pass_s -= ranks.traffic.since(before).wait_s
        if epoch and report.steps:
            seconds.append(slowest_s(ranks, pass_s))
    return seconds


def slowest_s(ranks: Ranks, seconds: float) -> float:
    """Seconds of the slowest rank, given this one's; a collective."""
    (most_us,) = ranks.maximum([int(seconds * US_PER_S)])
    return most_us / US_PER_S


def measured_link(ranks: Ranks) -> tuple[float, float]:
    """α, seconds of a collective, and β, seconds of a byte that a rank sends: the fastest of a few; zeros for one rank."""
    if ranks.size == 1:
        return 0.0, 0.0
    box = torch.zeros(1, device=ranks.device)
    rows = torch.zeros(ranks.size, PROBE_BYTES, dtype=torch.uint8, device=ranks.device)
    one_row = [1] * ranks.size
    alpha_s = min(_seconds(ranks, lambda: ranks.sum_rows(box, PROBE)) for _ in range(PROBES))
    long_s = min(
        _seconds(ranks, lambda: ranks.exchange(rows, one_row, one_row, PROBE)) for _ in range(PROBES)
    )
    return alpha_s, max(0.0, long_s - alpha_s) / (PROBE_BYTES * (ranks.size - 1))


def _seconds(ranks: Ranks, collective: Callable[[], object]) -> float:
    before = ranks.traffic.copy()
    collective()
    return ranks.traffic.since(before).wait_s


def setup_of(session: Session) -> Setup:
    """What stays in a run; measures the link."""
    model, ranks = session.model, session.ranks
    stages, device = model.stages if isinstance(model, SnapshotModel) else (), ranks.device
    alpha_s, beta_s = measured_link(ranks)
    free = (
        torch.cuda.mem_get_info(device)[0]
        if device.type == "cuda"
        else psutil.virtual_memory().available / ranks.size
    )
    return Setup(
        ranks=ranks.size,
        alpha_s=alpha_s,
        beta_s=beta_s,
        free_bytes=FREE_SHARE * free,
        width=model.width,
        weights=sum(weights.numel() for weights in model.parameters()),
        stages=len(stages),
        fanouts=tuple(stage.fanout for stage in reversed(stages) if isinstance(stage, GraphStage)),
        turns=sum(one.along != other.along for one, other in pairwise(stages)),
        window=session.config.window,
        batch=session.config.optimisation.batch,
    )


def load_of(session: Session, manifest: LaneManifest) -> Load | None:
    """The size of a pass over a snapshot, from the lane's records alone; None: a snapshot model needs an earlier one.

    Smoothing makes other graphs of the events than the lane's; the sizes are those of the lane's then.
    """
    manifests, size = session.lane.manifests, session.ranks.size
    most = session.config.horizon or session.config.window
    first = max(manifests.first, manifest.sequence - most)
    horizon = [manifests[number] for number in range(first, manifest.sequence)]
    if not horizon:
        if session.model.kind == "snapshot":
            return None
        horizon = [manifest]
    newest = horizon[-1]
    parts = [part.edges for part in newest.parts]
    return Load(
        snapshots=len(horizon),
        nodes=newest.num_nodes,
        active=sum(past.live_nodes for past in horizon) / len(horizon),
        edges=sum(past.live_edges for past in horizon) / len(horizon),
        events=manifest.num_events,
        foreign_parts=merged(newest.quality.foreign_parts or 0.0, len(parts), size),
        largest_share=largest_share(parts, size),
    )


def lane_cost(lane: LaneReader, manifest: LaneManifest, ranks: int, *, is_event: bool) -> float | None:
    """What a lane costs training, by the quality of one of its snapshots, to be compared with that of other lanes.

    The busiest rank of ``vertex`` learns from its share of the pairs and reads λ rows for each of its own: the product
    counts. For no other strategy for snapshot models does the lane matter. For event models it is the share of discarded
    or cut events.

    Returns:
        None: A snapshot model cannot take the lane.
    """
    quality = manifest.quality
    if is_event:
        return quality.cut or 0.0
    if lane.header.kind != "vertex":
        return None
    share = largest_share([part.edges for part in manifest.parts], ranks)
    return share * (1 + merged(quality.foreign_parts or 0.0, lane.header.parts, ranks))


def cheapest(lanes: Mapping[str, float]) -> tuple[str, str]:
    """The lane that costs least, of equal ones the first, and why, in a sentence."""
    chosen = min(lanes, key=lambda name: lanes[name])
    shown = ", ".join(f"{name} {value:.3g}" for name, value in lanes.items())
    return chosen, f"lane {chosen} costs least: {shown}"


def largest_share(edges: list[int], ranks: int) -> float:
    """The share of a lane's pairs on the rank that has most, given those of each part."""
    largest = max(sum(edges[rank::ranks]) for rank in range(ranks))
    return largest / sum(edges) if sum(edges) else 1 / ranks


def merged(foreign_parts: float, parts: int, ranks: int) -> float:
    """λ between ranks, given that between parts: of parts of one rank none is foreign."""
    return foreign_parts * (1 - 1 / ranks) / (1 - 1 / parts) if parts > 1 else 0.0
