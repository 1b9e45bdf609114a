"""Strategies: ways of ranks to share the work."""
