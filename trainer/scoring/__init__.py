"""Judgement of predictions: ranking figures, and the floors beside every model."""
