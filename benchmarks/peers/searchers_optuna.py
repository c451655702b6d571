# mypy: ignore-errors
# The reason: optuna lives in an environment of its own, which the type checker does not see.
"""Optuna 5 at its best for asynchronous workers, by its ask-and-tell interface. See searchers_lines.py.

TPE               TPESampler(), multivariate and with a constant liar, which a study has without a sampler, and Ray
                  Tune's OptunaSearch too; its documentation advises both for parallel workers
GP                GPSampler, its defaults; running trials are known to it
TPE, Hyperband    the same TPE with HyperbandPruner(reduction_factor=3), which its documentation calls the best pruner
                  for it; it is asked after each report

A trial is told its last value, so a full training counts with its end.
"""

import optuna
from optuna import distributions
from searchers_lines import serve

MAKERS = {
    "uniform": lambda lower, upper: distributions.FloatDistribution(lower, upper),
    "loguniform": lambda lower, upper: distributions.FloatDistribution(lower, upper, log=True),
    "randint": lambda lower, upper: distributions.IntDistribution(lower, upper),
    "lograndint": lambda lower, upper: distributions.IntDistribution(lower, upper, log=True),
    "choice": lambda categories: distributions.CategoricalDistribution(categories),
}


class Search:
    def __init__(self, settings):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        method, seed = settings["method"], settings["seed"]
        if method == "GP":
            sampler = optuna.samplers.GPSampler(seed=seed)
        else:
            sampler = optuna.samplers.TPESampler(seed=seed)
        self.prunes = method == "TPE, Hyperband"
        pruner = optuna.pruners.NopPruner()
        if self.prunes:
            pruner = optuna.pruners.HyperbandPruner(1, settings["max_resource"], reduction_factor=3)
        # The Hyperband pruner draws brackets by the study's name, which would be another each time.
        self.study = optuna.create_study(study_name=f"seed {seed}", sampler=sampler, pruner=pruner)
        self.space = {name: MAKERS[maker](**given) for name, (maker, given) in settings["space"].items()}
        self.trials, self.last, self.pruned = {}, {}, set()

    def suggest(self, trial):
        self.trials[trial] = self.study.ask(self.space)
        return self.trials[trial].params

    def report(self, trial, resource, loss):
        self.last[trial] = loss
        if not self.prunes:
            return "CONTINUE"
        self.trials[trial].report(loss, resource)
        if not self.trials[trial].should_prune():
            return "CONTINUE"
        self.pruned.add(trial)
        return "STOP"

    def end(self, trial):
        asked, value = self.trials.pop(trial), self.last.pop(trial)
        if trial in self.pruned:
            self.study.tell(asked, state=optuna.trial.TrialState.PRUNED)
        else:
            self.study.tell(asked, value)


if __name__ == "__main__":
    serve(Search)
