"""The head of link prediction: from two embeddings and the pair's encounters to the logit of an event."""

import torch
from torch import Tensor, nn

from freshet_graph.trainer.data.history import Encounter
from freshet_graph.trainer.nn.time_encoding import bumps

_AGES = sum(column.name.endswith("_AGE") for column in Encounter)
"""Ages come first, then counts: a list of columns would be copied to the device at each use."""
_BUMPS = 10
_LONGEST_LOG_S = 20.0  # e²⁰ s = 15 years


class EncounterEncoder(nn.Module):
    """Ages on a log-spaced time scale, and counts, as inputs of a linear layer; nothing is learned.

    Each age is spread over Gaussian bumps at log-spaced times from 1 s to 15 years; "never" is all zeros. Event gaps are
    heavy-tailed, so a decoder needs equal resolution in log time.

    Attributes:
        width: Numbers per query.
    """

    width = _AGES * _BUMPS + len(Encounter) - _AGES
    centres: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(0, _LONGEST_LOG_S, _BUMPS), persistent=False)

    def forward(self, encounters: Tensor) -> Tensor:
        """float32 (q, len(Encounter)) → (q, width)."""
        ages = bumps(encounters[:, :_AGES], self.centres, _LONGEST_LOG_S / (_BUMPS - 1))
        return torch.cat([ages.flatten(1), torch.log1p(encounters[:, _AGES:]) / 4], dim=1)


class LinkDecoder(nn.Module):
    """A two-layer perceptron over z(u) ⊙ z(v), z(u), z(v) and, if wanted, the pair's encounters.

    Args:
        width: Of embeddings.
        hidden: Of the perceptron.
        encounters: Whether it sees the encounters; otherwise it knows the window's graphs only.
    """

    def __init__(self, width: int, hidden: int, *, encounters: bool) -> None:
        super().__init__()
        self.encounters = EncounterEncoder() if encounters else None
        self.perceptron = nn.Sequential(
            nn.Linear(3 * width + (EncounterEncoder.width if encounters else 0), hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, src: Tensor, dst: Tensor, encounters: Tensor) -> Tensor:
        """Logits (q,) of queries; see ``SnapshotModel.score``."""
        encoded = encounters[:, :0] if self.encounters is None else self.encounters(encounters)
        table = torch.cat([src * dst, src, dst, encoded.to(src.dtype)], dim=1)
        logits: Tensor = self.perceptron(table).squeeze(1)
        return logits


class LinearDecoder(nn.Module):
    """One layer over z(u), z(v) (ESDG section 6.4).

    Args:
        width: Of embeddings.
        hidden: Not used: there is no hidden layer.
        encounters: Not used: it knows the window's graphs only.
    """

    def __init__(self, width: int, hidden: int, *, encounters: bool) -> None:
        super().__init__()
        del hidden, encounters
        self.layer = nn.Linear(2 * width, 1)

    def forward(self, src: Tensor, dst: Tensor, encounters: Tensor) -> Tensor:
        """Logits (q,) of queries; see ``LinkDecoder.forward``."""
        logits: Tensor = self.layer(torch.cat([src, dst], dim=1)).squeeze(1)
        return logits
