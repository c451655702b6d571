"""Weights & Biases callback: one run per trial, in a group with the name of the search."""

from typing import Any

from ...base.errors import NotInstalled
from .search_events import SearchStarted, TrialEnded, TrialReported, TrialStarted


class WandbCallback:
    """Logs the trials of a search as runs of Weights & Biases.

    A resumed trial continues its run, even after the search itself was resumed. The x-axis of the charts is
    `fanwise/iter`, the number of the report. W&B's own step is not used, because W&B drops values whose step is not
    above the last one, as after a restart from an earlier checkpoint. A restarted trial has several values for some
    `fanwise/iter`; the value with the highest `fanwise/attempt` is valid. With mode="offline", upload resumed runs
    with `wandb sync --append`.

    Args:
        project: W&B project. None: the default, e.g. `WANDB_PROJECT`.
        settings: further arguments of `wandb.init`, such as entity="team", mode="offline" or dir="logs".

    Raises:
        NotInstalled: W&B is not installed.

    >>> from fanwise.tune.callbacks import WandbCallback
    >>> callbacks = [WandbCallback("digits", mode="offline")]
    """

    def __init__(self, project: str | None = None, **settings: Any) -> None:
        try:
            import wandb

            wandb.init  # noqa: B018  # AttributeError if a log folder ./wandb was imported instead of W&B
        except (ImportError, AttributeError) as error:
            raise NotInstalled("WandbCallback needs W&B. Install it: pip install 'fanwise[wandb]'.") from error
        self._wandb: Any = wandb
        self._settings = {"project": project, **settings}
        self._search_name = self._search_id = ""
        self._runs: dict[int, Any] = {}

    def on_start(self, event: SearchStarted) -> None:
        self._search_name = event.name
        self._search_id = f"{round(event.created_s * 1e6):x}-{event.seed:x}"

    def on_trial_start(self, event: TrialStarted) -> None:
        if event.trial_id in self._runs:
            return
        settings = {
            "group": self._search_name,
            "name": f"{self._search_name}/{event.trial_id}",
            "id": f"{self._search_id}-{event.trial_id}",
            "resume": "allow" if event.attempt else None,
            **self._settings,
        }
        run = self._runs[event.trial_id] = self._wandb.init(
            **settings,
            config=dict(event.config),
            reinit="create_new",  # trials run concurrently
        )
        run.define_metric("fanwise/iter")
        run.define_metric("*", step_metric="fanwise/iter")

    def on_report(self, event: TrialReported) -> None:
        if event.trial_id in self._runs:  # otherwise on_trial_start failed
            progress = {"fanwise/iter": event.iter, "fanwise/attempt": event.attempt}
            self._runs[event.trial_id].log({**event.values, **progress})

    def on_trial_end(self, event: TrialEnded) -> None:
        if event.is_over and event.trial_id in self._runs:
            run = self._runs.pop(event.trial_id)
            run.summary["status"] = str(event.status)
            run.finish(exit_code=0 if event.reason is None else 1)

    def on_end(self, event: object) -> None:
        for run in self._runs.values():  # of trials that have not ended, e.g. paused ones
            run.finish()
        self._runs.clear()
