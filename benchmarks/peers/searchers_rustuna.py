# mypy: ignore-errors
# The reason: rustuna lives in an environment of its own, which the type checker does not see.
"""Rustuna 0.2: its TPESampler with default settings, by its ask-and-tell interface. See searchers_lines.py.

The sampler has no option for running trials. A trial ends with its last value, and there are no pruners.
"""

import rustuna
from searchers_lines import serve


def suggest(trial, name, maker, settings):
    if maker == "choice":
        return trial.suggest_categorical(name, settings["categories"])
    function = trial.suggest_int if maker.endswith("randint") else trial.suggest_float
    return function(name, settings["lower"], settings["upper"], log=maker.startswith("log"))


class Search:
    def __init__(self, settings):
        self.space = settings["space"]
        self.study = rustuna.create_study(sampler=rustuna.samplers.TPESampler(seed=settings["seed"]))
        self.numbers, self.last = {}, {}

    def suggest(self, trial):
        asked = self.study.ask()
        self.numbers[trial] = asked.number
        return {name: suggest(asked, name, *domain) for name, domain in self.space.items()}

    def report(self, trial, resource, loss):
        self.last[trial] = loss
        return "CONTINUE"

    def end(self, trial):
        self.study.tell(self.numbers.pop(trial), self.last.pop(trial))


if __name__ == "__main__":
    serve(Search)
