"""The loss of another rank: the only failure of a rank that another attempt can mend."""

from collections.abc import Iterator
from contextlib import contextmanager

from schemas.errors import FreshetError


class PeerLostError(FreshetError, RuntimeError):
    """Another rank is gone or does not answer: all ranks start again from the last checkpoint."""


@contextmanager
def peers_may_be_lost(rank: int) -> Iterator[None]:
    """Distinguish errors of torch.distributed about other ranks from defects of this program.

    Raises:
        PeerLostError: The body failed because of another rank.
    """
    from torch.distributed import DistError

    try:
        yield
    except RuntimeError as error:
        # gloo raises plain RuntimeErrors, which name its source files
        if isinstance(error, DistError) or "gloo" in str(error):
            raise PeerLostError(f"rank {rank} lost another rank: {error}") from error
        raise
