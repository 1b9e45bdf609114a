"""What simple scores know about the frauds of ``synth --fraud``: each uses a payment, those before it, and labels of before."""

from collections import defaultdict, deque

import numpy as np
import pyarrow as pa
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from freshet_graph.trainer.scoring.metrics import area_under_roc, average_precision

_DAY_S = 86_400.0
_EPOCHS = 8


def simple_scores(events: pa.Table, labels: pa.Table) -> dict[str, np.ndarray]:
    """A score of each payment by each baseline, higher is more suspicious; sorted tables, see ``payments``."""
    src, dst, t, amount = (events[name].to_numpy() for name in ("src", "dst", "t", "weight"))
    row = {name: i for i, name in enumerate(events["event_id"].to_pylist())}
    labelled = [row[name] for name in labels["event_id"].to_pylist()]
    decided, label = labels["t"].to_numpy(), labels["label"].to_numpy()
    names = (
        "amount against the account's mean",
        "payments of the source",
        "payments to the destination",
        "pair never met",
        "new pairs of the source lately",
        "labels of the source",
        "labels of the destination",
        "received within a day",
    )
    scores = np.zeros((len(names), len(t)))
    out, into, paid = defaultdict(int), defaultdict(int), defaultdict(float)
    news, last = defaultdict(float), defaultdict(float)
    pairs: set[tuple[int, int]] = set()
    said: dict[int, int] = {}
    bad = defaultdict(float)
    received: dict[int, deque[tuple[float, float]]] = defaultdict(deque)
    due = 0
    for i, (u, v, at, a) in enumerate(
        zip(src.tolist(), dst.tolist(), t.tolist(), amount.tolist(), strict=True)
    ):
        while due < len(decided) and decided[due] < at:
            e, new = labelled[due], int(label[due])
            for node in (int(src[e]), int(dst[e])):  # a correction takes the place of the label before it
                bad[node] += new - said.get(e, 0)
            said[e] = new
            due += 1
        recent = received[u]
        while recent and recent[0][0] < at - _DAY_S:
            recent.popleft()
        total = sum(x for _, x in recent)
        met = (u, v) in pairs
        news[u] = news[u] * 0.5 ** ((at - last[u]) / _DAY_S) + (not met)
        last[u] = at
        scores[:, i] = (
            np.log(a * (out[u] + 1) / (paid[u] + 20.0)),
            -out[u],
            -into[v],
            not met,
            news[u],
            bad[u] / (out[u] + into[u] + 5),
            bad[v] / (out[v] + into[v] + 5),
            min(total, a) / max(total, a),
        )
        out[u] += 1
        into[v] += 1
        paid[u] += a
        pairs.add((u, v))
        received[v].append((at, a))
    return {"amount": amount.astype(float), **dict(zip(names, scores, strict=True))}


def together(scores: dict[str, np.ndarray], is_fraud: np.ndarray, learned: int, seed: int = 0) -> np.ndarray:
    """A network of two hidden layers over all scores, learned from the true labels of the first ``learned`` payments."""
    raw = np.stack(list(scores.values()), axis=1)
    place = np.stack([np.searchsorted(np.sort(x[:learned]), x) / learned for x in raw.T], axis=1)
    inputs = np.concatenate((place, place**8, np.sign(raw) * np.log1p(np.abs(raw)) / 3), axis=1)
    x, y = torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(is_fraud.astype(np.float32))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )
        optimiser = torch.optim.Adam(network.parameters(), 3e-3)
        for _ in range(_EPOCHS):
            for batch in torch.randperm(learned).split(1024):
                optimiser.zero_grad()
                binary_cross_entropy_with_logits(network(x[batch])[:, 0], y[batch]).backward()
                optimiser.step()
    with torch.no_grad():
        return network(x)[:, 0].double().numpy()


def baseline_figures(
    events: pa.Table, labels: pa.Table, truth: pa.Table, tested: float = 0.4
) -> dict[str, dict[str, tuple[float, float]]]:
    """AUROC and AP over the last share of the payments, by baseline, then by pattern (against plain payments) and ``all``."""
    names = truth["event_id"].to_pylist()
    pattern_of = dict(zip(names, truth["pattern"].to_pylist(), strict=True))
    pattern = np.array([pattern_of.get(name, "") for name in events["event_id"].to_pylist()])
    first = int(len(pattern) * (1 - tested))
    scores = simple_scores(events, labels)
    scores["all of them"] = together(scores, pattern != "", first)
    figures: dict[str, dict[str, tuple[float, float]]] = {}
    for name, score in scores.items():
        plain = score[first:][pattern[first:] == ""]
        parts = {kind: score[first:][pattern[first:] == kind] for kind in np.unique(pattern[first:]) if kind}
        parts = {"all": score[first:][pattern[first:] != ""], **parts}
        figures[name] = {
            kind: (area_under_roc(some, plain), average_precision(some, plain))
            for kind, some in parts.items()
        }
    return figures
