"""A search in Weights & Biases: one run a trial, in a group of the search's name. Loaded when the callback is made."""

from typing import Any

from ...base.errors import NotInstalled
from .events import SearchStarted, TrialEnded, TrialReported, TrialStarted


class WandbCallback:
    """Keeps the trials of a search as runs of Weights & Biases.

    A trial that continues, also in a resumed search, continues its run. W&B drops values whose step is not above the
    last one, so reports are logged with `fanwise/iter`, their number in the trial, which is the x-axis of their charts,
    and with `fanwise/attempt`: a trial that starts again from an earlier checkpoint has two values at some
    `fanwise/iter`, and that of the last attempt counts. W&B itself marks runs that a killed tuner has left as crashed.
    With mode="offline", upload the parts of a run that continued with `wandb sync --append`.

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
        self._search = self._id = ""
        self._runs: dict[int, Any] = {}  # Any: W&B's runs

    def on_start(self, event: SearchStarted) -> None:
        self._search = event.name
        self._id = f"{round(event.created_s * 1e6):x}-{event.seed:x}"

    def on_trial_start(self, event: TrialStarted) -> None:
        if event.trial_id in self._runs:  # it goes on
            return
        settings = {
            "group": self._search,
            "name": f"{self._search}/{event.trial_id}",
            "id": f"{self._id}-{event.trial_id}",
            "resume": "allow" if event.attempt else None,
            **self._settings,
        }
        run = self._runs[event.trial_id] = self._wandb.init(
            **settings,
            config=dict(event.config),
            reinit="create_new",  # several trials run at a time
        )
        run.define_metric("fanwise/iter")
        run.define_metric("*", step_metric="fanwise/iter")

    def on_report(self, event: TrialReported) -> None:
        if event.trial_id in self._runs:  # else that it started could not be written
            own = {"fanwise/iter": event.iter, "fanwise/attempt": event.attempt}
            self._runs[event.trial_id].log({**event.values, **own})

    def on_trial_end(self, event: TrialEnded) -> None:
        if event.is_over and event.trial_id in self._runs:
            run = self._runs.pop(event.trial_id)
            run.summary["status"] = str(event.status)
            run.finish(exit_code=0 if event.reason is None else 1)

    def on_end(self, event: object) -> None:
        for run in self._runs.values():  # paused for good
            run.finish()
        self._runs.clear()
