"""The partitioners of this package: importing a module registers what it defines."""

from stream.partition import byte_lp, distdy, hash, hdrf, ldg, metis, sep

__all__ = ["byte_lp", "distdy", "hash", "hdrf", "ldg", "metis", "sep"]
