"""The additive store: a log that is the truth, lanes that are views of it, readers for trainers.

From the bottom up: ``files`` (whole files and records, whatever happens), ``log`` (commits and sealed snapshots), ``lane``
(the difference of every snapshot, part by part), ``window`` (the last w snapshots of a lane in memory), ``verify``
(all of it checked); ``from_file`` and ``inspect`` use them.
"""
