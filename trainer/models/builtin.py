"""The models of this package, imported for their registrations."""

from trainer.models import sage_linear
from trainer.models.memory import presets

__all__ = ["presets", "sage_linear"]
