"""The additive store: a log that is the truth, lanes that are views of it, readers for trainers."""
