"""Which GPU trains which snapshot group in which iteration (DyGNeX): schedules, their bound, simulated clusters."""
