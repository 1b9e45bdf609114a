"""The last snapshots of a lane in memory, additively: adjacency, features and events of each."""
