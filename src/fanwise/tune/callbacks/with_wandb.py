"""A search in Weights & Biases: one run a trial, in a group of the search's name. Loaded when the callback is made."""

from typing import Any

from ...base.errors import NotInstalled
from .events import SearchStarted, TrialEnded, TrialReported, TrialStarted


class WandbCallback:
    """Keeps the trials of a search as runs of Weights & Biases.

    Args:
        project: of W&B; None: what `WANDB_PROJECT` or W&B says.
        settings: further arguments of `wandb.init`, such as entity="team", mode="offline" or dir="logs".

    Raises:
        NotInstalled: W&B is not installed.

    >>> from fanwise.tune import WandbCallback
    >>> callbacks = [WandbCallback("digits", mode="offline")]
    """

    def __init__(self, project: str | None = None, **settings: Any) -> None:  # Any: W&B's
        try:
            import wandb

            wandb.init  # noqa: B018  # a folder of the same name, where W&B keeps its logs, can be imported, too
        except (ImportError, AttributeError) as error:
            raise NotInstalled("WandbCallback needs W&B. Install it: pip install 'fanwise[wandb]'.") from error
        self._wandb: Any = wandb  # Any: checked alike without W&B
        self._settings = {"project": project, **settings}
        self._search = ""
        self._runs: dict[int, Any] = {}  # Any: W&B's runs

    def on_start(self, event: SearchStarted) -> None:
        self._search = event.name

    def on_trial_start(self, event: TrialStarted) -> None:
        if event.trial_id in self._runs:  # it goes on
            return
        self._runs[event.trial_id] = self._wandb.init(
            **{"group": self._search, "name": f"{self._search}/{event.trial_id}", **self._settings},
            config=dict(event.config),
            reinit="create_new",  # several trials run at a time
        )

    def on_report(self, event: TrialReported) -> None:
        if event.trial_id in self._runs:  # else that it started could not be written
            self._runs[event.trial_id].log(dict(event.values), step=event.iter)

    def on_trial_end(self, event: TrialEnded) -> None:
        if event.is_over and event.trial_id in self._runs:
            run = self._runs.pop(event.trial_id)
            run.summary["status"] = str(event.status)
            run.finish(exit_code=0 if event.reason is None else 1)

    def on_end(self, event: object) -> None:
        for run in self._runs.values():  # paused for good
            run.finish()
        self._runs.clear()
