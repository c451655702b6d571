"""MLflow callback: one run per trial, with hyperparameters as parameters, numbers as metrics and texts as tags.

The callback uses its own MLflow client, and so does not affect the active run of the program.
"""

from typing import Any

from ...base.extras import check_installed
from ..schedulers.scheduler import Status
from .search_events import SearchStarted, TrialEnded, TrialReported, TrialStarted

_CONNECT_TIMEOUT_S = 5.0


class MLflowCallback:
    """Logs the trials of a search as runs of an MLflow experiment.

    A resumed trial continues its run, even after the search itself was resumed. If a trial restarts from an earlier
    checkpoint, its run keeps the discarded reports, because MLflow cannot delete values. The tag `fanwise.attempt.N`
    gives the numbers of the discarded reports. Runs that are still RUNNING at the end of the search, because an earlier
    tuner was killed, are set to KILLED.

    Args:
        tracking_uri: URI of the store or server. None: MLflow's default, e.g. `MLFLOW_TRACKING_URI`.
        experiment: name of the MLflow experiment. None: name of the search.

    Raises:
        NotInstalled: MLflow is not installed.

    >>> from fanwise.tune.callbacks import MLflowCallback
    >>> callbacks = [MLflowCallback("http://127.0.0.1:5000")]
    """

    def __init__(self, tracking_uri: str | None = None, *, experiment: str | None = None) -> None:
        check_installed("MLflowCallback needs", "mlflow", extra="mlflow")
        import mlflow

        self._client: Any = mlflow.MlflowClient(tracking_uri)
        self._server = str(self._client.tracking_uri)
        self._experiment = experiment
        self._experiment_id = ""
        self._search_name = self._search_id = ""
        self._runs: dict[int, str] = {}

    def on_start(self, event: SearchStarted) -> None:
        _check_server(self._server)
        self._search_name = event.name
        self._search_id = f"{event.created_s:.6f}-{event.seed}"
        name = event.name if self._experiment is None else self._experiment
        experiment = self._client.get_experiment_by_name(name)
        self._experiment_id = self._client.create_experiment(name) if experiment is None else experiment.experiment_id

    def on_trial_start(self, event: TrialStarted) -> None:
        if event.attempt:
            condition = f"tags.`fanwise.trial_id` = '{event.trial_id}'"
            run_id = self._runs.get(event.trial_id) or next(iter(self._find_runs(condition)), None)
            if run_id is not None:
                self._runs[event.trial_id] = run_id
                self._client.update_run(run_id, "RUNNING")
                if event.void_after is not None:
                    text = f"reports of earlier attempts after number {event.void_after} are discarded"
                    self._client.set_tag(run_id, f"fanwise.attempt.{event.attempt}", text)
                return
        tags = {
            "mlflow.runName": f"trial {event.trial_id}",
            "fanwise.experiment": self._search_name,
            "fanwise.search": self._search_id,
            "fanwise.trial_id": str(event.trial_id),
        }
        run_id = self._runs[event.trial_id] = self._client.create_run(self._experiment_id, tags=tags).info.run_id
        for name, value in event.config.items():
            self._client.log_param(run_id, name, value)

    def _find_runs(self, condition: str) -> list[str]:
        condition = f"tags.`fanwise.search` = '{self._search_id}' AND {condition}"
        return [run.info.run_id for run in self._client.search_runs([self._experiment_id], condition)]

    def on_report(self, event: TrialReported) -> None:
        run_id = self._runs.get(event.trial_id)
        if run_id is None:  # on_trial_start failed
            return
        for name, value in event.values.items():
            if isinstance(value, str):
                self._client.set_tag(run_id, name, value)
            else:
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
            self._client.set_terminated(run_id, "FAILED" if event.status is Status.FAILED else "FINISHED")
        else:
            self._client.update_run(run_id, "SCHEDULED")

    def on_end(self, event: object) -> None:
        for run_id in self._find_runs("attributes.status = 'RUNNING'"):
            self._client.set_terminated(run_id, "KILLED")
        self._runs.clear()


def _check_server(uri: str) -> None:
    """Raise ConnectionError if the server is unreachable. MLflow itself would retry each call for minutes."""
    if not uri.startswith(("http://", "https://")):
        return
    import requests

    try:
        requests.get(uri, timeout=_CONNECT_TIMEOUT_S, allow_redirects=False)
    except requests.exceptions.SSLError:
        return  # the server is reachable; MLflow has its own TLS settings
    except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
        raise ConnectionError(
            f"MLflow's server {uri} cannot be reached ({type(error).__name__}); this search is not logged to it"
        ) from error
