"""The strategies of this package, imported for their registrations."""

from trainer.strategies import vertex

__all__ = ["vertex"]
