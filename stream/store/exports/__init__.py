"""A trainer's exports: numbered commits, each of which names whole files."""
