"""From events to snapshots: event time, the id dictionary, the current graph and its deltas."""
