"""Every Python process that finds this first takes a silent rank for dead sooner: a test waits for it."""

import freshet_graph.trainer.heartbeats

freshet_graph.trainer.heartbeats.SILENT_S = 3 * freshet_graph.trainer.heartbeats.BEAT_S
