"""How ranks share the work, by name."""
