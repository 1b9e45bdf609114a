"""Every Python process that finds this first takes a silent rank for dead sooner: a test waits for it."""

import os

import freshet_graph.trainer.heartbeats

freshet_graph.trainer.heartbeats.LOST_S = float(os.environ.get("LOST_S", "60"))
freshet_graph.trainer.heartbeats.SILENT_S = 3 * freshet_graph.trainer.heartbeats.BEAT_S
