"""The partitioners of this package: importing a module registers what it defines."""

from stream.partition import hash

__all__ = ["hash"]
