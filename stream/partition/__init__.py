"""Online graph partitioners: arrays in, arrays out, chosen by name."""
