"""A slow reference of the event models, one event and one node at a time, written from the papers' equations."""

import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from freshet_graph.trainer.models.tgn import MemoryModel

Vector = np.ndarray


@dataclass(frozen=True)
class Event:
    """u meets v at t (microseconds); what it carries is the same for both."""

    u: int
    v: int
    t: int
    carried: Vector


@dataclass
class MemoryReference:
    """s(u) = UPD(MSG(…), state before) after every group of events; embeddings look at strictly earlier events."""

    model: MemoryModel
    source: str
    own_in_message: bool
    cell: str
    embedding: str
    mean: bool = False
    roles: bool = False
    state: dict[int, Vector] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    past: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.w = {name: value.detach().numpy() for name, value in self.model.state_dict().items()}

    def deliver(self, group: list[Event]) -> None:
        """All messages are made of what was before the group."""
        mails: dict[int, list[tuple[Vector, Vector, Vector, int]]] = defaultdict(list)
        before = group[0].t
        for event in group:
            for node, other, role in ((event.u, event.v, 1), (event.v, event.u, -1)):
                if self.source == "memory":
                    own, told = self.s(node), self.s(other)
                elif self.source == "neighbourhood":
                    own = self.s(node)
                    told = np.concatenate([self.s(other), self.struct(other, before)])
                else:  # TIGE: the states just before the event are the embeddings
                    own, told = (
                        self.attended(end, event.t, before, self.model.attention.layers)
                        for end in (node, other)
                    )
                mails[node].append((own, told, self.edge(event, role), event.t))
        after = {}
        for node, received in mails.items():
            if self.mean:
                own, told, edge = (np.mean([mail[part] for mail in received], axis=0) for part in range(3))
            else:
                own, told, edge = received[-1][:3]
            t = received[-1][3]
            gap = (t - self.last.get(node, t)) / 1e6
            parts = [own, told, edge, self.time(gap)] if self.own_in_message else [told, edge, self.time(gap)]
            after[node] = self.update(np.concatenate(parts), own)
            self.last[node] = t
        self.state.update(after)
        self.past += group

    def struct(self, node: int, before: int) -> Vector:
        """DyRep's h_struct: in each dimension the largest σ(s(w)) of the neighbours."""
        around = [1 / (1 + np.exp(-self.s(w))) for w, _, _ in self.neighbours(node, before)]
        return np.max(around, axis=0) if around else np.zeros(self.model.width)

    def embed(self, node: int, t: int, before: int) -> Vector:
        if self.embedding == "identity":
            return self.s(node)
        if self.embedding == "projection":  # JODIE eq. 3
            days = (t - self.last[node]) / 1e6 / 86_400 if node in self.last else 0.0
            return (1 + days * self.w["embedding.weight"]) * self.s(node)
        return self.attended(node, t, before, self.model.attention.layers)

    def logit(self, u: Vector, v: Vector) -> float:
        hidden = self.linear("decoder.perceptron.0", np.concatenate([u, v]))
        return float(self.linear("decoder.perceptron.2", np.maximum(hidden, 0))[0])

    def s(self, node: int) -> Vector:
        return self.state.get(node, np.zeros(self.model.width))

    def edge(self, event: Event, role: int) -> Vector:
        return np.concatenate([[role if self.roles else 0], event.carried])

    def time(self, seconds: float) -> Vector:
        if "message.time.frequency" in self.w:
            return np.cos(seconds * self.w["message.time.frequency"] + self.w["message.time.phase"])
        width = self.model.message.time.width
        spacing = 20.0 / (width - 1)
        return np.array(
            [math.exp(-(((math.log1p(seconds) - i * spacing) / spacing) ** 2)) for i in range(width)]
        )

    def update(self, x: Vector, h: Vector) -> Vector:
        gates_x = self.w["updater.weight_ih"] @ x + self.w["updater.bias_ih"]
        gates_h = self.w["updater.weight_hh"] @ h + self.w["updater.bias_hh"]
        if self.cell == "rnn":
            return np.tanh(gates_x + gates_h)
        (rx, zx, nx), (rh, zh, nh) = np.split(gates_x, 3), np.split(gates_h, 3)
        r, z = 1 / (1 + np.exp(-(rx + rh))), 1 / (1 + np.exp(-(zx + zh)))
        return (1 - z) * np.tanh(nx + r * nh) + z * h

    def attended(self, node: int, t: int, before: int, layer: int) -> Vector:
        """TGN eqs. 8 to 11; inner layers look from the time up to which events are seen."""
        if layer == 0:
            return self.s(node)
        name = f"attention.attention.{layer - 1}"
        own = self.attended(node, before, before, layer - 1)
        query = self.linear(f"{name}.query", np.concatenate([own, self.time(0.0)]))
        keys, values = [], []
        for other, edge, then in self.neighbours(node, before):
            h = self.attended(other, before, before, layer - 1)
            c = np.concatenate([h, edge, self.time((t - then) / 1e6)])
            keys.append(self.w[f"{name}.key.weight"] @ c)
            values.append(self.w[f"{name}.value.weight"] @ c)
        heads = self.model.attention.attention[0].heads
        each = self.model.width // heads
        gathered = np.zeros(self.model.width)
        for head in range(heads):
            part = slice(head * each, (head + 1) * each)
            if keys:
                scores = np.array([query[part] @ key[part] for key in keys]) / math.sqrt(each)
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                gathered[part] = sum(a * value[part] for a, value in zip(weights, values, strict=True))
        both = np.concatenate([gathered, own])
        if f"{name}.merge.weight" in self.w:
            return self.linear(f"{name}.merge", both)
        return self.linear(f"{name}.merge.2", np.maximum(self.linear(f"{name}.merge.0", both), 0))

    def neighbours(self, node: int, before: int) -> list[tuple[int, Vector, int]]:
        found = []
        for event in self.past:
            if event.t < before:
                if event.u == node:
                    found.append((event.v, self.edge(event, 1), event.t))
                if event.v == node:
                    found.append((event.u, self.edge(event, -1), event.t))
        return found[::-1][: self.model.neighbours]

    def linear(self, name: str, x: Vector) -> Vector:
        return self.w[f"{name}.weight"] @ x + self.w[f"{name}.bias"]
