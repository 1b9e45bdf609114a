"""Strategies for event models: batches of events along a memory."""
