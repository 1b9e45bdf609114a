"""The job of one process: its cycles, its lanes, and its waits."""
