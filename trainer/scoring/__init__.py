"""Judgement of predictions: ranking figures, and the baselines beside every model."""
