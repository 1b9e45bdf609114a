"""Experiment trackers: scores and checkpoints of a run, sent to a service that compares runs."""
