"""MLflow: a run with parameters, a metric per figure and snapshot, checkpoints and a model card."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from freshet_graph.schemas.section import Section
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.trackers.interface import TRACKERS, TrackedRun

MOST_METRICS, MOST_PARAMS = 1000, 100
"""Of one request, by MLflow's REST interface."""

MOST_CHARACTERS = 6000
"""Of a parameter's value."""

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # it reports its use to its makers
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # standard output is for --json
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # the caller tries again, and says so
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Environment variables of MLflow that are set unless they are set already."""


class MlflowOptions(Section):
    """Options of ``mlflow``."""

    uri: str | None = Field(
        None,
        description="Address of the server, such as http://127.0.0.1:5000. null: MLflow's own variable MLFLOW_TRACKING_URI. "
        "A login belongs into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.",
    )
    experiment: str = Field("freshet", min_length=1, description="The experiment, made if there is none.")


@TRACKERS.register
class MlflowTracker:
    """Sends a run to an MLflow server (extra mlflow).

    Args:
        options: Its ``Options``.

    Raises:
        Failure: MLflow is not installed.
    """

    name: ClassVar[str] = "mlflow"
    Options: ClassVar[type[Section]] = MlflowOptions

    def __init__(self, options: MlflowOptions) -> None:
        for variable, value in QUIET.items():
            os.environ.setdefault(variable, value)
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise Failure(
                f"key tracker: mlflow is not installed ({error}). Run: pip install 'freshet-graph[mlflow]'"
            ) from None
        self._client: Any = MlflowClient(tracking_uri=options.uri)
        self._experiment = options.experiment
        self._run = ""

    def open(self, run: TrackedRun, earlier: str | None) -> str:
        """See ``Tracker.open``. A run that was removed is not continued."""
        if earlier is not None and self._continues(earlier):
            self._run = earlier
            return earlier
        experiment = self._client.get_experiment_by_name(self._experiment)
        number = (
            self._client.create_experiment(self._experiment)
            if experiment is None
            else experiment.experiment_id
        )
        self._run = self._client.create_run(number, run_name=run.name, tags=run.tags).info.run_id
        from mlflow.entities import Param

        params = [Param(name, value[:MOST_CHARACTERS]) for name, value in run.params.items()]
        for some in _pieces(params, MOST_PARAMS):
            self._client.log_batch(self._run, params=some)
        return self._run

    def _continues(self, earlier: str) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            if self._client.get_run(earlier).info.lifecycle_stage != "active":
                return False
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        self._client.update_run(earlier, status="RUNNING")
        return True

    def log(self, figures: Sequence[tuple[Mapping[str, float], int, int]]) -> None:
        """See ``Tracker.log``. A snapshot's number is the step, and its event time the metric's time."""
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, milliseconds, number)
            for values, number, milliseconds in figures
            for name, value in values.items()
        ]
        for some in _pieces(metrics, MOST_METRICS):
            self._client.log_batch(self._run, metrics=some)

    def upload(self, files: Mapping[str, Path]) -> None:
        """See ``Tracker.upload``; files are MLflow's artifacts."""
        for place, path in files.items():
            self._client.log_artifact(self._run, str(path), str(Path(place).parent) if "/" in place else None)

    def close(self, *, failed: bool) -> None:
        """See ``Tracker.close``."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


def _pieces(entries: list[Any], size: int) -> list[list[Any]]:
    return [entries[first : first + size] for first in range(0, len(entries), size)]
