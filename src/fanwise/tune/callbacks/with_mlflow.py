"""A search in MLflow: one run a trial, with its hyperparameters as parameters and its reports as metrics.

Through a client of its own, so that a run that is active in the program stays as it is. MLflow is loaded when the
callback is made.
"""

from typing import Any

from ...base.errors import NotInstalled
from ..schedulers.protocol import Status
from .events import SearchStarted, TrialEnded, TrialReported, TrialStarted

_STATUS = {
    Status.COMPLETED: "FINISHED",
    Status.FAILED: "FAILED",
    Status.STOPPED: "FINISHED",
    Status.PAUSED: "SCHEDULED",
}
# How long MLflow's server may take to answer a first question.
_ANSWER_S = 5.0


class MLflowCallback:
    """Keeps the trials of a search as runs of an MLflow experiment.

    Args:
        tracking_uri: of MLflow's store or server; None: what `MLFLOW_TRACKING_URI` or MLflow says.
        experiment: the name of MLflow's experiment; None: the search's.

    Raises:
        NotInstalled: MLflow is not installed.

    >>> from fanwise.tune import MLflowCallback
    >>> callbacks = [MLflowCallback("http://127.0.0.1:5000")]
    """

    def __init__(self, tracking_uri: str | None = None, *, experiment: str | None = None) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise NotInstalled("MLflowCallback needs MLflow. Install it: pip install 'fanwise[mlflow]'.") from error
        self._client: Any = mlflow.MlflowClient(tracking_uri)  # Any: checked alike without MLflow
        self._server = str(self._client.tracking_uri)
        self._experiment = experiment
        self._experiment_id = ""
        self._search = ""
        self._runs: dict[int, str] = {}

    def on_start(self, event: SearchStarted) -> None:
        _check_answers(self._server)
        self._search = event.name
        name = event.name if self._experiment is None else self._experiment
        found = self._client.get_experiment_by_name(name)
        self._experiment_id = self._client.create_experiment(name) if found is None else found.experiment_id

    def on_trial_start(self, event: TrialStarted) -> None:
        if event.trial_id in self._runs:  # it goes on
            self._client.update_run(self._runs[event.trial_id], "RUNNING")
            return
        tags = {
            "mlflow.runName": f"trial {event.trial_id}",
            "fanwise.experiment": self._search,
            "fanwise.trial_id": str(event.trial_id),
        }
        run_id = self._runs[event.trial_id] = self._client.create_run(self._experiment_id, tags=tags).info.run_id
        for name, value in event.config.items():
            self._client.log_param(run_id, name, value)

    def on_report(self, event: TrialReported) -> None:
        run_id = self._runs.get(event.trial_id)
        if run_id is None:  # that it started could not be written
            return
        for name, value in event.values.items():
            self._client.log_metric(run_id, name, value, step=event.iter)

    def on_trial_end(self, event: TrialEnded) -> None:
        run_id = self._runs.get(event.trial_id)
        if run_id is None:
            return
        self._client.set_tag(run_id, "fanwise.status", str(event.status))
        if event.reason is not None:
            self._client.set_tag(run_id, "fanwise.reason", event.reason.text.partition("\n")[0])
        if event.is_over:
            del self._runs[event.trial_id]
            self._client.set_terminated(run_id, _STATUS[event.status])
        else:
            self._client.update_run(run_id, "SCHEDULED")


def _check_answers(uri: str) -> None:
    """ConnectionError for a server that does not answer. MLflow itself would try for minutes, call after call."""
    if not uri.startswith(("http://", "https://")):
        return
    import requests  # which MLflow asks its servers with

    try:
        requests.get(uri, timeout=_ANSWER_S, allow_redirects=False)
    except requests.exceptions.SSLError:
        return  # somebody is there; MLflow has settings of its own for whom to trust
    except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
        raise ConnectionError(
            f"MLflow's server {uri} cannot be reached ({type(error).__name__}): nothing of this search is written to it"
        ) from error
