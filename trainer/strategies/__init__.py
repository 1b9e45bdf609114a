"""Strategies: ways for ranks to share the work."""
