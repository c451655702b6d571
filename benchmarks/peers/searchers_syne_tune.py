# mypy: ignore-errors
# The reason: syne_tune lives in an environment of its own, which the type checker does not see.
"""Syne Tune 0.16: its schedulers as its tuner calls them. See searchers_lines.py.

CQR, BORE, TPE, REA     every trial runs to its end; they learn from the last report
ASHA, ASHACQR, BOHB     trials are stopped; the searcher learns from the last report of each trial

All settings are its defaults, reduction factor 3 and grace period 1 of early stopping among them.
"""

import datetime
import logging

import numpy as np
from searchers_lines import serve
from syne_tune import config_space
from syne_tune.backend.trial_status import Trial
from syne_tune.optimizer import baselines

FULL = {"CQR": baselines.CQR, "BORE": baselines.BORE, "TPE": baselines.TPE, "REA": baselines.REA}
STOPPING = {"ASHA": baselines.ASHA, "ASHACQR": baselines.ASHACQR, "BOHB": baselines.BOHB}


class Search:
    def __init__(self, settings):
        logging.disable(logging.WARNING)
        method, seed = settings["method"], settings["seed"]
        np.random.seed(seed)  # brackets and some of its searchers draw from numpy's own generator
        space = {name: getattr(config_space, maker)(**given) for name, (maker, given) in settings["space"].items()}
        common = {"metric": "loss", "do_minimize": True, "random_seed": seed}
        if method in STOPPING:
            common |= {"time_attr": "resource", "max_t": settings["max_resource"]}
            self.scheduler = STOPPING[method](space, **common)
        else:
            self.scheduler = FULL[method](space, **common)
        self.trials, self.last, self.stopped = {}, {}, set()

    def suggest(self, trial):
        config = self.scheduler.suggest().config
        self.trials[trial] = Trial(trial_id=trial, config=config, creation_time=datetime.datetime.now())
        self.scheduler.on_trial_add(self.trials[trial])
        return config

    def report(self, trial, resource, loss):
        self.last[trial] = {"loss": loss, "resource": resource}
        decision = self.scheduler.on_trial_result(self.trials[trial], self.last[trial])
        if decision == "STOP":
            self.stopped.add(trial)
        return decision

    def end(self, trial):
        asked, result = self.trials.pop(trial), self.last.pop(trial)
        if trial in self.stopped:
            self.scheduler.on_trial_remove(asked)
        else:
            self.scheduler.on_trial_complete(asked, result)


if __name__ == "__main__":
    serve(Search)
