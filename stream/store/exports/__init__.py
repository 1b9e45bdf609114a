"""What a trainer exports, for whoever reads it: numbered commits, each of which names whole files."""
