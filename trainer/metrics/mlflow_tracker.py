"""Record metrics in MLflow: on a tracking server, or in the run's folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# MLflow retries for minutes by default. Its file store, the only one of mlflow-skinny, has to be allowed.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
_PARAMETERS_PER_CALL = 100
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "requeue": "SCHEDULED"}


class MlflowTracker:
    """A run in MLflow. A restart continues it, because its id is stored in the run's folder.

    `online` uses the server of MLFLOW_TRACKING_URI. If there is none, or it cannot be reached, metrics are recorded in
    the folder, as in the mode `offline`.
    """

    setting = "metrics.mlflow"

    def __init__(self, folder: Path, mode: str, project: str, name: str, config: Mapping[str, Any]) -> None:
        self._folder = folder
        self._mode = mode
        self._project = project
        self._name = name
        self._config = config
        self._client: Any = None
        self._id = ""

    def open(self) -> str:
        """Start or continue the run, and return where it is recorded."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        server = os.environ.get("MLFLOW_TRACKING_URI", "")
        problem = ""
        if self._mode == "online" and not server:
            problem = "MLFLOW_TRACKING_URI is not set; "
        elif self._mode == "online":
            try:
                self._start(server)
                return f"recording at {server}, run {self._id}"
            except Exception as error:  # no network, a refused key, a server of another version
                problem = f"cannot reach {server} ({' '.join(str(error).split())}); "
        local = f"sqlite:///{self._folder}/mlflow.db" if find_spec("sqlalchemy") else f"file://{self._folder}/mlruns"
        self._start(local)
        return f"{problem}recording in the run's folder; view with `mlflow ui --backend-store-uri {local}`"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of a step in a single call."""
        from mlflow.entities import Metric  # noqa: PLC0415 - optional, and slow to import

        now_ms = int(time.time() * 1000)
        metrics = [Metric(_clean(name), value, now_ms, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, outcome: str) -> None:
        """Mark the run as finished, stopped, waiting for a requeue, or failed."""
        self._client.set_tag(self._id, "outcome", outcome)
        self._client.set_terminated(self._id, _STATUS.get(outcome, "FAILED"))

    def _start(self, uri: str) -> None:
        from mlflow import MlflowClient  # noqa: PLC0415 - optional, and slow to import
        from mlflow.entities import Param  # noqa: PLC0415
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        self._client = client = MlflowClient(tracking_uri=uri)
        file = self._folder / "mlflow-run"
        if file.exists():
            self._id = file.read_text(encoding="utf-8").strip()
            try:
                client.update_run(self._id, status="RUNNING")
                return
            except MlflowException:
                pass  # recorded in another store, or deleted there
        experiment = client.get_experiment_by_name(self._project)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(self._project)
        self._id = client.create_run(experiment_id, run_name=self._name).info.run_id
        parameters = [Param(name, str(value)) for name, value in _flatten(self._config)]
        for start in range(0, len(parameters), _PARAMETERS_PER_CALL):
            client.log_batch(self._id, params=parameters[start : start + _PARAMETERS_PER_CALL])
        file.write_text(self._id, encoding="utf-8")


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _clean(name: str) -> str:
    """Return a metric's name with only the characters that MLflow allows."""
    return "".join(character if character.isalnum() or character in "_-. /" else "_" for character in name)
