# mypy: ignore-errors
# The reason: ax lives in an environment of its own, which the type checker does not see.
"""Ax 1.3: its Client with default settings: a Sobol design, then a Gaussian process of BoTorch. See searchers_lines.py.

Running trials are known to it. A trial ends with its last value.
"""

import logging
import warnings

from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from searchers_lines import serve


def parameter(name, maker, settings):
    if maker == "choice":
        values = settings["categories"]
        return ChoiceParameterConfig(name=name, values=values, parameter_type=type(values[0]).__name__)
    return RangeParameterConfig(
        name=name,
        bounds=(settings["lower"], settings["upper"]),
        parameter_type="int" if maker.endswith("randint") else "float",
        scaling="log" if maker.startswith("log") else "linear",
    )


class Search:
    def __init__(self, settings):
        logging.disable(logging.WARNING)
        warnings.simplefilter("ignore")
        self.client = Client(random_seed=settings["seed"])
        self.client.configure_experiment([parameter(name, *domain) for name, domain in settings["space"].items()])
        self.client.configure_optimization(objective="-loss")
        self.indices, self.last = {}, {}

    def suggest(self, trial):
        ((index, config),) = self.client.get_next_trials(max_trials=1).items()
        self.indices[trial] = index
        return config

    def report(self, trial, resource, loss):
        self.last[trial] = loss
        return "CONTINUE"

    def end(self, trial):
        self.client.complete_trial(self.indices.pop(trial), raw_data={"loss": self.last.pop(trial)})


if __name__ == "__main__":
    serve(Search)
