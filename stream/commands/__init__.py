"""The commands of freshet-stream, one a module."""
