"""Compaction: records indexed, old snapshots dropped, garbage swept, beside writers and readers."""
