"""T-GCN over a whole lane by dense products."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from trainer_streams import FEATURES, SECOND, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.data.neighbours import signatures

SIGNATURE, WINDOW, LIFE = 4, 3, 2


def config_for(folder: Path, **more: object) -> TrainerConfig:
    values = {
        "store": str(folder / "store"), "lane": "hash", "task": "node-regression", "window": WINDOW,
        "model": "tgcn", "strategy": "whole", "model_params": {"hidden": 6, "signature": SIGNATURE},
        "checkpoint": str(folder / "checkpoints"), "checkpoint_every": 1,
        "strategy_params": {"steps": 1},
        "optimisation": {"epochs": 1, "batch_size": 16, "learning_rate": 0.01, "grad_clip": None}, **more,
    }  # fmt: skip
    return TrainerConfig.model_validate(values)


def lane_of(folder: Path, events: pa.Table | None = None) -> LaneReader:
    """Nodes come in every snapshot, and most soon have no edge any more."""
    table = meetings(nodes=90, a_snapshot=25, snapshots=7) if events is None else events
    build_store(
        table, folder / "store", interval_us=SECOND, lanes=[Lane(name="hash", algorithm="hash", parts=2, edge_life=LIFE)],
        node_features=FEATURES, segments=2, graph="meetings",
    )  # fmt: skip
    return LaneReader(folder / "store", "hash")


def shaken(model: torch.nn.Module) -> None:
    """No weight is zero, biases included."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn(weights.shape, generator=generator) * 0.3)


class Dense:
    """Rows of all ids in every snapshot of a lane, and T-GCN over them, by dense products.

    A lane stores no features of nodes that have no live edge.
    """

    def __init__(self, lane: LaneReader) -> None:
        self.taus, self.adjacency, self.rows, self.there = [], [], [], []
        nodes = lane.manifests[-1].num_nodes
        seen: dict[tuple[int, int], int] = {}
        features = np.zeros((nodes, FEATURES), np.float32)
        come = 0
        for manifest in lane.manifests:
            counts = np.zeros((nodes, 2))
            seen = {pair: then for pair, then in seen.items() if manifest.tau - then < LIFE}
            for row in lane.log.events(manifest.tau).to_pylist():
                src, dst = row["src_node"], row["dst_node"]
                come = max(come, src + 1, dst + 1)
                if row["op"] == 0:
                    features[src] = row["features"]
                elif row["op"] == 1:
                    seen[src, dst] = manifest.tau
                    counts[src, 0] += 1
                    counts[dst, 1] += 1
                else:
                    seen.pop((src, dst), None)
            a = np.zeros((nodes, nodes))
            for src, dst in seen:
                if src != dst:
                    a[src, dst] = a[dst, src] = 1
            live = np.isin(np.arange(nodes), [end for pair in seen for end in pair])
            structure = np.log1p(np.column_stack([a.sum(axis=1), counts]))
            there = np.arange(nodes) < come
            x = (
                np.hstack([features * live[:, None], signatures(np.arange(nodes), SIGNATURE, 0), structure])
                * there[:, None]
            )
            scale = np.diag(1 / np.sqrt(1 + a.sum(axis=1)))
            self.taus.append(manifest.tau)
            self.adjacency.append(torch.from_numpy(scale @ (a + np.eye(nodes)) @ scale).float())
            self.rows.append(torch.from_numpy(x).float())
            self.there.append(torch.from_numpy(there))

    def tgcn(self, model: Any, first: int, until: int) -> Tensor:
        """Embeddings (nodes, width) after snapshots ``first`` … ``until`` − 1."""
        layers = list(model.layers)
        states = [torch.zeros(len(self.rows[0]), model.width) for _ in layers[::2]]
        for at in range(first, until):
            x = self.rows[at]
            for number, cell in enumerate(layers[1::2]):
                h = states[number]
                f = cell.linear(self.adjacency[at] @ x)
                f_u, f_r, f_c = f.chunk(3, dim=1)
                u = torch.sigmoid(cell.update(torch.cat([f_u, h], dim=1)))
                r = torch.sigmoid(cell.reset(torch.cat([f_r, h], dim=1)))
                c = torch.tanh(cell.candidate(torch.cat([f_c, r * h], dim=1)))
                states[number] = x = torch.where(self.there[at][:, None], u * h + (1 - u) * c, h)
        return states[-1]
