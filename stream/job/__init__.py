"""The job of one process: the run loop, its lanes, and what it waits for."""
