"""Every Python process that finds this first takes a silent rank for dead sooner: a test waits for it."""

import trainer.heartbeats

trainer.heartbeats.SILENT_S = 3 * trainer.heartbeats.BEAT_S
