"""The strategies of this package, imported for their registrations."""

from trainer.strategies import pac, sequential, vertex

__all__ = ["pac", "sequential", "vertex"]
