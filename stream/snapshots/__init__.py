"""From events to snapshots: event time, the id dictionary, the live graph and its deltas."""
