"""The partitioners of this package: importing a module registers what it defines."""

from stream.partition import byte_lp, distdy, hash, hdrf, kl, ldg, load_aware, metis, powergraph, sep

__all__ = ["byte_lp", "distdy", "hash", "hdrf", "kl", "ldg", "load_aware", "metis", "powergraph", "sep"]
