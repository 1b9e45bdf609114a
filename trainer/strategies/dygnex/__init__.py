"""DyGNeX: whole snapshot groups, scheduled over ranks."""
