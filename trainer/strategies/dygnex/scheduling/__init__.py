"""Assignment of snapshot groups to GPUs and iterations (DyGNeX): schedules, their bound, simulated clusters."""
