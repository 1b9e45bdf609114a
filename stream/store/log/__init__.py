"""The log: commits, open tail, refused messages and sealed snapshots; one writer, many readers."""
