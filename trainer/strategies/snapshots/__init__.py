"""Strategies for snapshot models: ways to cut the grid of snapshots × nodes."""
