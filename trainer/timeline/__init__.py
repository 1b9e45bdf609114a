"""The last snapshots of the graph as tensors, for strategies that pass over whole snapshots."""
