# mypy: ignore-errors
# The reason: smac lives in an environment of its own, which the type checker does not see.
"""SMAC3 2.4: its facade for hyperparameter optimization, asked and told. See searchers_lines.py.

The facade is the one with a random forest, which its documentation advises for hyperparameters. It expects 100 trials:
a quarter of them at most are the initial design. All other settings are its defaults. A trial ends with its last value.
"""

import tempfile
from pathlib import Path

from ConfigSpace import Categorical, ConfigurationSpace, Float, Integer
from searchers_lines import serve
from smac import HyperparameterOptimizationFacade, Scenario
from smac.runhistory import TrialValue

TRIALS = 100
MAKERS = {
    "uniform": lambda name, lower, upper: Float(name, (lower, upper)),
    "loguniform": lambda name, lower, upper: Float(name, (lower, upper), log=True),
    "randint": lambda name, lower, upper: Integer(name, (lower, upper)),
    "lograndint": lambda name, lower, upper: Integer(name, (lower, upper), log=True),
    "choice": lambda name, categories: Categorical(name, categories),
}


class Search:
    def __init__(self, settings):
        space = ConfigurationSpace(seed=settings["seed"])
        space.add([MAKERS[maker](name, **given) for name, (maker, given) in settings["space"].items()])
        self.folder = tempfile.TemporaryDirectory()
        scenario = Scenario(
            space,
            deterministic=True,
            n_trials=TRIALS,
            seed=settings["seed"],
            n_workers=1,  # of its own; the trials that were asked and not yet told count as running
            output_directory=Path(self.folder.name),
        )
        self.smac = HyperparameterOptimizationFacade(
            scenario, lambda config, seed=0: 0.0, logging_level=False, overwrite=True
        )
        self.asked, self.last = {}, {}

    def suggest(self, trial):
        self.asked[trial] = self.smac.ask()
        return dict(self.asked[trial].config)

    def report(self, trial, resource, loss):
        self.last[trial] = loss
        return "CONTINUE"

    def end(self, trial):
        self.smac.tell(self.asked.pop(trial), TrialValue(cost=self.last.pop(trial)), save=False)


if __name__ == "__main__":
    serve(Search)
