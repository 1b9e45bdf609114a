"""TGN training against PyG's building blocks, on the CPU: python benchmarks/event_training.py.

Both train TGN with the same widths (memory, time and embedding 100, two heads, ten latest neighbours, dropout 0.1, last
message, Adam) on the same events and negatives, in turns, in one process: ``torch_geometric``'s ``TGNMemory``,
``LastNeighborLoader`` and ``TransformerConv`` in the order of its example, and the preset ``tgn`` under the strategy
``sequential``. Medians of events/s over rounds, by the process's CPU seconds. ``--ap`` trains both for an epoch and
predicts what follows.

Needs ``pip install torch_geometric``, and jodie_wikipedia.parquet among the real graphs or as --data.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn

from schemas.trainer_config import Optimisation
from stream.store.log.event_columns import EventColumns
from trainer.data.examples import Examples, Queries
from trainer.data.history import Encounter, Inserts
from trainer.models.interface import ModelShape, create_model
from trainer.ranks import Ranks
from trainer.scoring.metrics import average_precision, batched
from trainer.strategies.events.remembering import EventOptions
from trainer.strategies.events.sequential import SequentialStrategy
from trainer.strategies.interface import Setting
from trainer.tasks.link_prediction import LinkPrediction

WIDTH, EDGES, RATE = 100, 4, 1e-3
HOST = torch.device("cpu")
Interactions = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Source, destination, seconds, and the destination of one negative each."""


def interactions(file: Path) -> Interactions:
    table = pq.read_table(file, columns=["src", "dst", "t"])
    src, dst, t = (table[name].to_numpy().astype(np.int64) for name in ("src", "dst", "t"))
    pool = np.unique(dst)
    return src, dst, t, pool[np.random.default_rng(0).integers(0, len(pool), len(src))]


class Peer:
    """PyG's building blocks, in the order of its example."""

    def __init__(self, data: Interactions, seed: int, device: torch.device = HOST) -> None:
        from torch_geometric.nn import TransformerConv
        from torch_geometric.nn.models.tgn import (
            IdentityMessage,
            LastAggregator,
            LastNeighborLoader,
            TGNMemory,
        )

        class Attention(nn.Module):
            def __init__(self, time_encoder: nn.Module) -> None:
                super().__init__()
                self.time_encoder = time_encoder
                edge = EDGES + WIDTH
                self.attend = TransformerConv(WIDTH, WIDTH // 2, heads=2, dropout=0.1, edge_dim=edge)

            def forward(self, x, last_update, edge_index, t, message):  # type: ignore[no-untyped-def]
                since = (last_update[edge_index[0]] - t).to(x.dtype)
                edge = torch.cat([self.time_encoder(since), message], dim=-1)
                return self.attend(x, edge_index, edge)

        torch.manual_seed(seed)
        self.src, self.dst, self.t, self.negative = (torch.from_numpy(column).to(device) for column in data)
        self.message = torch.zeros(len(self.src), EDGES, device=device)
        nodes = int(max(self.src.max(), self.dst.max())) + 1
        self.memory = TGNMemory(
            nodes, EDGES, WIDTH, WIDTH, IdentityMessage(EDGES, WIDTH, WIDTH), LastAggregator()
        )
        self.attention = Attention(self.memory.time_enc)
        self.decoder = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.parts = nn.ModuleList([self.memory, self.attention, self.decoder]).to(device)
        self.memory.reset_state()  # its messages are made on the memory's device
        self.neighbours = LastNeighborLoader(nodes, size=10, device=device)
        self.optimiser = torch.optim.Adam(set(self.parts.parameters()), lr=RATE)
        self.place = torch.empty(nodes, dtype=torch.long, device=device)

    def logits(self, here: slice) -> tuple[torch.Tensor, torch.Tensor]:
        src, dst, negative = self.src[here], self.dst[here], self.negative[here]
        nodes, edge_index, edges = self.neighbours(torch.cat([src, dst, negative]).unique())
        self.place[nodes] = torch.arange(len(nodes), device=nodes.device)
        z, last_update = self.memory(nodes)
        z = self.attention(z, last_update, edge_index, self.t[edges], self.message[edges])
        ends = [z[self.place[ids]] for ids in (src, dst, negative)]
        return tuple(self.decoder(torch.cat([ends[0], other], dim=1)).squeeze(1) for other in ends[1:])  # type: ignore[return-value]

    def remember(self, here: slice) -> None:
        self.memory.update_state(self.src[here], self.dst[here], self.t[here], self.message[here])
        self.neighbours.insert(self.src[here], self.dst[here])

    def train(self, begin: int, end: int, batch: int) -> None:
        self.parts.train()
        for first in range(begin, end, batch):
            here = slice(first, min(first + batch, end))
            self.optimiser.zero_grad()
            positive, negative = self.logits(here)
            loss = nn.functional.binary_cross_entropy_with_logits(positive, torch.ones_like(positive))
            loss = loss + nn.functional.binary_cross_entropy_with_logits(negative, torch.zeros_like(negative))
            self.remember(here)
            loss.backward()
            self.optimiser.step()
            self.memory.detach()

    @torch.no_grad()
    def predict(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        self.parts.eval()
        found = []
        for first in range(begin, end, 200):
            here = slice(first, min(first + 200, end))
            found.append(self.logits(here))
            self.remember(here)
        positive, negative = (torch.cat(part).cpu().numpy() for part in zip(*found, strict=True))
        return positive, negative


class Ours:
    """A preset under ``sequential``."""

    def __init__(
        self,
        data: Interactions,
        options: dict[str, str],
        precision: str,
        seed: int,
        *,
        name: str = "tgn",
        device: torch.device = HOST,
    ) -> None:
        torch.manual_seed(seed)
        self.data = data
        self.precision = precision
        widths = {"tgn": {"memory": WIDTH, "time_width": WIDTH}, "tgn-history": {"memory": WIDTH}}
        params = {**widths.get(name, {}), **options}
        self.name, self.device = name, device
        self.model = create_model(name, ModelShape(0, 1), params).to(device)
        self.num_nodes = int(max(data[0].max(), data[1].max())) + 1
        self.tau = 0

    def start(self, batch: int, *, compiled: bool = False) -> None:
        optimisation = Optimisation(batch_size=batch, learning_rate=RATE, grad_clip=None)
        lane: Any = SimpleNamespace(edge_features=0)
        # What the strategy is asked is made here; only the loss is the task's.
        task: Any = SimpleNamespace(loss=partial(LinkPrediction.loss, None))
        setting = Setting(
            self.model, task, lane, Ranks(device=self.device), optimisation, 0, compile=compiled
        )
        self.strategy = SequentialStrategy(setting, EventOptions(precision=self.precision))

    def snapshot(self, begin: int, end: int) -> tuple[Queries, Queries]:
        """The next events arrive, whatever is done with them."""
        src, dst, t, negative = (column[begin:end] for column in self.data)
        t, n = t * 1_000_000, end - begin
        self.strategy.remember(
            self.tau,
            EventColumns(
                op=np.ones(n, np.int8), src=src, dst=dst, t=t, visible_t=t, late=np.zeros(n, np.bool_),
                weight=np.zeros(n, np.float32), label=np.zeros(n, np.int32), has_label=np.zeros(n, np.bool_),
            ),
            self.num_nodes,
        )  # fmt: skip
        self.tau += 1
        encounters = np.zeros((n, len(Encounter)), np.float32)
        before = t[np.arange(n) // 200 * 200]
        positive, random = (
            Queries(np.arange(n), src, other, encounters, t, before) for other in (dst, negative)
        )
        return positive, random

    def train(self, begin: int, end: int, batch: int) -> None:
        positive, negative = self.snapshot(begin, end)
        nothing = positive.part(slice(0, 0))
        inserts = Inserts(positive.src, positive.dst, positive.time_us, np.zeros(len(positive), np.bool_))
        every = np.arange(len(positive))
        examples = Examples(
            0,
            0,
            inserts,
            inserts.late,
            every,
            positive,
            positive,
            negative,
            nothing,
            every,
            nothing,
            nothing,
            1,
            {},
        )
        self.strategy.learn([examples], 0)

    def predict(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        positive, negative = self.strategy.answer(self.model, list(self.snapshot(begin, end)))
        return positive, negative


PEERS = {"moment": "batch", "merge": "linear"}
OURS: dict[str, tuple[dict[str, str], str]] = {
    "tgn": ({}, "float32"),
    "tgn, once": ({"moment": "batch"}, "float32"),
    "tgn as the peer": (PEERS, "float32"),
    "tgn as the peer, bf16": (PEERS, "bfloat16"),
}
"""As in the paper; a node embedded once a batch; that with one linear layer after attention, as PyG's example has it;
and with bfloat16 products."""


def rates(
    data: Interactions, batch: int, rounds: int, warm: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    sides: dict[str, Callable[[int, int, int], None]] = {"torch_geometric": Peer(data, 0).train}
    for name, (options, precision) in OURS.items():
        ours = Ours(data, options, precision, 0)
        ours.start(batch)
        sides[name] = ours.train
    for train in sides.values():
        train(0, warm, batch)
    found: dict[str, list[float]] = {name: [] for name in sides}
    events = max(3 * batch, 1200)
    for begin in range(warm, warm + rounds * events, events):
        for name, train in sides.items():
            began = clock()
            train(begin, begin + events, batch)
            found[name].append(events / (clock() - began))
    return found


def precision(data: Interactions, batch: int, epochs: int, seed: int) -> Iterator[tuple[str, float]]:
    count = len(data[0])
    learned, judged = int(0.7 * count), int(0.85 * count)
    peer = Peer(data, seed)
    for _ in range(epochs):
        peer.memory.reset_state()
        peer.neighbours.reset_state()
        peer.train(0, learned, batch)
    yield "torch_geometric", batched(average_precision, *peer.predict(learned, judged)) or 0.0
    for name, (options, products) in OURS.items():
        ours = Ours(data, options, products, seed)
        ours.start(batch)
        for _ in range(epochs):
            ours.strategy.rewind()
            ours.train(0, learned, batch)
        yield name, batched(average_precision, *ours.predict(learned, judged)) or 0.0


def main() -> None:
    arguments = argparse.ArgumentParser()
    default = Path(__file__).parents[2] / "shared/data/jodie_wikipedia.parquet"
    arguments.add_argument("--data", type=Path, default=default)
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--warm", type=int, default=12_000, help="events both learn before the clock runs")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--wall", action="store_true", help="seconds on the wall, not of processors")
    arguments.add_argument(
        "--ap", type=int, metavar="EPOCHS", help="compare AP instead, after so many epochs"
    )
    arguments.add_argument("--seeds", type=int, default=3, help="of --ap")
    arguments.add_argument("--batch", type=int, action="append")
    chosen = arguments.parse_args()
    try:
        import torch_geometric  # noqa: F401
    except ImportError:
        sys.exit("this benchmark compares with torch_geometric; say: pip install torch_geometric")
    if not chosen.data.exists():
        sys.exit(f"{chosen.data} is not there; name a Parquet file of src, dst, t with --data")
    torch.set_num_threads(chosen.threads)
    data = interactions(chosen.data)
    for batch in chosen.batch or (200, 600, 2000):
        if chosen.ap:
            reached = [dict(precision(data, batch, chosen.ap, seed)) for seed in range(chosen.seeds)]
            for name in reached[0]:
                aps = [each[name] for each in reached]
                shown = f"{statistics.mean(aps):.4f} ({min(aps):.4f} to {max(aps):.4f})"
                print(f"batch {batch:5}  {name:22} AP {shown}  (validation, {chosen.ap} epochs)", flush=True)
            continue
        clock = time.perf_counter if chosen.wall else time.process_time
        found = rates(data, batch, chosen.rounds, chosen.warm, clock)
        for name, rate in found.items():
            ratios = [ours / peer for peer, ours in zip(found["torch_geometric"], rate, strict=True)]
            print(
                f"batch {batch:5}  {name:22} {statistics.median(rate):7.0f} events/s  "
                f"ratio {statistics.median(ratios):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
