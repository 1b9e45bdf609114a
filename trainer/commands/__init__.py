"""Commands of freshet-trainer, one module per command."""
