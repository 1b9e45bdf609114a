"""The models of this package, imported for their registrations."""

from trainer.models import sage_linear

__all__ = ["sage_linear"]
