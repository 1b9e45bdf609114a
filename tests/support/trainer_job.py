"""What ``freshet-trainer`` loads, for processes that are forked from one that has loaded it."""

from importlib import import_module

from freshet_graph.trainer.models.interface import MODELS
from freshet_graph.trainer.strategies.interface import STRATEGIES
from freshet_graph.trainer.tasks.interface import TASKS

for module in (
    "torch._dynamo",  # the first optimiser of a process loads it, which is most of a start
    "torch.distributed.launcher.api",
    "freshet_graph.trainer.service",
    "freshet_graph.trainer.evaluation.evaluate",
):
    import_module(module)
for registry in (MODELS, STRATEGIES, TASKS):
    registry.all()  # loads them
