"""The partitioners of this package: importing a module registers what it defines."""

from stream.partition import distdy, hash, hdrf, ldg, sep

__all__ = ["distdy", "hash", "hdrf", "ldg", "sep"]
