"""ESDG: snapshots divided among ranks, in gradient checkpoint blocks."""
