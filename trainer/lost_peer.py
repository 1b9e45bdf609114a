"""The loss of another rank: the only failure of a rank that another attempt can mend."""

from freshet_graph.schemas.errors import FreshetError


class PeerLostError(FreshetError, RuntimeError):
    """Another rank is gone or does not answer: all ranks start again from the last checkpoint."""
