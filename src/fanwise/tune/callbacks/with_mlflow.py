"""A search in MLflow: one run a trial, with hyperparameters as parameters, reports as metrics, and notes as tags.

Through a client of its own, so that a run that is active in the program stays as it is. MLflow is loaded when the
callback is made.
"""

from collections.abc import Iterator
from typing import Any

from ...base.errors import NotInstalled
from ..schedulers.base import Status
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

    A trial that continues, also in a resumed search, continues its run. MLflow cannot delete values: of a trial that
    starts again from an earlier checkpoint, a run keeps the void reports, too, and the tag `fanwise.attempt.N` says
    which they are. A run that still runs when the search ends, because its tuner was killed, is set to KILLED then.

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
        self._experiment_name = self._search = ""
        self._runs: dict[int, str] = {}

    def on_start(self, event: SearchStarted) -> None:
        _check_answers(self._server)
        self._experiment_name = event.name
        self._search = f"{event.created_s:.6f}-{event.seed}"
        name = event.name if self._experiment is None else self._experiment
        found = self._client.get_experiment_by_name(name)
        self._experiment_id = self._client.create_experiment(name) if found is None else found.experiment_id

    def on_trial_start(self, event: TrialStarted) -> None:
        if event.attempt:
            of_trial = f"tags.`fanwise.trial_id` = '{event.trial_id}'"
            found = self._runs.get(event.trial_id) or next(self._found(of_trial), None)
            if found is not None:
                self._runs[event.trial_id] = found
                self._client.update_run(found, "RUNNING")
                if event.void_after is not None:
                    text = f"earlier reports after report {event.void_after} are void"
                    self._client.set_tag(found, f"fanwise.attempt.{event.attempt}", text)
                return
        tags = {
            "mlflow.runName": f"trial {event.trial_id}",
            "fanwise.experiment": self._experiment_name,
            "fanwise.search": self._search,
            "fanwise.trial_id": str(event.trial_id),
        }
        run_id = self._runs[event.trial_id] = self._client.create_run(self._experiment_id, tags=tags).info.run_id
        for name, value in event.config.items():
            self._client.log_param(run_id, name, value)

    def _found(self, condition: str) -> Iterator[str]:
        """The ids of the runs of this search that meet a condition."""
        condition = f"tags.`fanwise.search` = '{self._search}' AND {condition}"
        page_token = None
        while True:
            page = self._client.search_runs([self._experiment_id], condition, page_token=page_token)
            yield from (run.info.run_id for run in page)
            page_token = page.token
            if not page_token:
                return

    def on_report(self, event: TrialReported) -> None:
        run_id = self._runs.get(event.trial_id)
        if run_id is None:  # that it started could not be written
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
            self._client.set_terminated(run_id, _STATUS[event.status])
        else:
            self._client.update_run(run_id, "SCHEDULED")

    def on_end(self, event: object) -> None:
        for run_id in list(self._found("attributes.status = 'RUNNING'")):
            self._client.set_terminated(run_id, "KILLED")
        self._runs.clear()


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
