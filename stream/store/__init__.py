"""The additive store: a log that holds the truth, lanes that are views of it, readers for trainers.

From the bottom up: ``places`` and ``files`` (whole files and records), ``log`` (commits and sealed snapshots), ``lane`` (the
difference of every snapshot, part by part), ``window`` (the last w snapshots of a lane in memory), ``verify`` (all checks).
"""
