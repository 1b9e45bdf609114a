"""SPEED: memories of nodes shared among ranks by part."""
