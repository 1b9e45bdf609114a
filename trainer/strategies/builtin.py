"""The strategies of this package, imported for their registrations."""

from trainer.strategies import sequential, vertex

__all__ = ["sequential", "vertex"]
