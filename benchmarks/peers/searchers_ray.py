# mypy: ignore-errors
# The reason: ray lives in an environment of its own, which the type checker does not see.
"""Ray Tune 2.60: its searchers and its schedulers, called as its controller calls them. See searchers_lines.py.

HyperOpt, HEBO, Nevergrad     every trial runs to its end; the searcher learns from the last report
ASHA, median stopping         random search; trials are stopped
ASHA, HyperOpt                HyperOpt learns from the last report of stopped trials too
HyperBand                     random search; trials are paused until their bracket has reached its rung
BOHB                          TuneBOHB with HyperBandForBOHB, the one pair that Ray Tune offers for it

Searchers are limited to the workers as `TuneConfig(max_concurrent_trials=...)` limits them: HEBO then suggests in
batches of so many and waits for the last of each. HyperBand alone is not limited, because paused trials would count:
there trials are queued as Ray Tune queues them for random search. All settings are Ray Tune's defaults, but for those
that have none: Nevergrad's optimizer is NGOpt, which its documentation advises, told of 100 trials; the median stopping
rule counts epochs and may stop from the first on.

No cluster runs: what a scheduler asks of Ray Tune's controller is answered by `Search` itself, in the order of
TuneController.step, _process_trial_result and stop_trial. With one worker that gave the reports of a real Tuner with
max_concurrent_trials=1 one by one (20 trials of HyperOpt, ASHA, both, and median stopping, 30 of BOHB); with HyperBand
as many, in another order, for a Tuner does not always start the trial that the scheduler names before other new ones.
"""

import logging
import warnings

import numpy as np
from ray import tune
from ray.tune import schedulers
from ray.tune.experiment import Trial
from ray.tune.search import ConcurrencyLimiter, Searcher
from ray.tune.search.variant_generator import generate_variants
from searchers_lines import serve

TRIALS = 100  # that Nevergrad is told to expect: the budget is that of so many trainings
QUEUED = 200  # that Ray Tune queues for random search

# An upper bound of Ray Tune's integers is not part of the space.
MAKERS = {
    "uniform": tune.uniform,
    "loguniform": tune.loguniform,
    "randint": lambda lower, upper: tune.randint(lower, upper + 1),
    "lograndint": lambda lower, upper: tune.lograndint(lower, upper + 1),
    "choice": tune.choice,
}


class RandomSearch(Searcher):
    """What Ray Tune does without a searcher: its generator of variants, here one at a time."""

    def __init__(self, seed):
        super().__init__(metric="loss", mode="min")
        self.random_state = np.random.RandomState(seed)

    def set_search_properties(self, metric, mode, config, **spec):
        self.space = config
        return True

    def suggest(self, trial_id):
        _, config = next(generate_variants(self.space, random_state=self.random_state))
        return config

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass


def searcher_of(method, seed, n_workers):
    goal = {"metric": "loss", "mode": "min"}
    if method in ("HyperOpt", "ASHA, HyperOpt"):
        from ray.tune.search.hyperopt import HyperOptSearch

        return HyperOptSearch(random_state_seed=seed, **goal)
    if method == "HEBO":
        from ray.tune.search.hebo import HEBOSearch

        return HEBOSearch(random_state_seed=seed, **goal)
    if method == "Nevergrad":
        import nevergrad
        from ray.tune.search.nevergrad import NevergradSearch

        told = {"budget": TRIALS, "num_workers": n_workers}
        return NevergradSearch(optimizer=nevergrad.optimizers.NGOpt, optimizer_kwargs=told, **goal)
    if method == "BOHB":
        from ray.tune.search.bohb import TuneBOHB

        return TuneBOHB(seed=seed, **goal)
    return RandomSearch(seed)


def scheduler_of(method, max_resource):
    goal = {"metric": "loss", "mode": "min", "time_attr": "training_iteration"}
    if method in ("ASHA", "ASHA, HyperOpt"):
        return schedulers.AsyncHyperBandScheduler(max_t=max_resource, **goal)
    if method == "HyperBand":
        return schedulers.HyperBandScheduler(max_t=max_resource, **goal)
    if method == "BOHB":
        return schedulers.HyperBandForBOHB(max_t=max_resource, **goal)
    if method == "median stopping":
        return schedulers.MedianStoppingRule(grace_period=1, **goal)
    return schedulers.FIFO()


class Search:
    """Also the controller that schedulers ask: `get_trials`, `get_live_trials`, `search_alg`, `stop_trial`."""

    def __init__(self, settings):
        logging.disable(logging.WARNING)
        warnings.simplefilter("ignore")
        method, seed, n_workers = settings["method"], settings["seed"], settings["n_workers"]
        np.random.seed(seed)  # some libraries draw from numpy's own generator
        space = {name: MAKERS[maker](**given) for name, (maker, given) in settings["space"].items()}
        self.searcher = searcher_of(method, seed, n_workers)
        self.queued = QUEUED
        if method != "HyperBand":
            self.searcher = ConcurrencyLimiter(self.searcher, max_concurrent=n_workers)
            self.queued = n_workers
        self.searcher.set_search_properties("loss", "min", space)
        self.scheduler = scheduler_of(method, settings["max_resource"])
        self.search_alg = self  # HyperBandForBOHB asks for `search_alg.searcher`
        self.live, self.started, self.last, self.made = {}, {}, {}, 0

    def suggest(self, trial):
        self.queue()
        chosen = self.scheduler.choose_trial_to_run(self)
        if chosen is None and not any(one.status == Trial.RUNNING for one in self.live.values()):
            # A bracket was ended by that question, which made room.
            self.queue()
            chosen = self.scheduler.choose_trial_to_run(self)
        if chosen is None:
            return None
        resumed = chosen.status == Trial.PAUSED
        chosen.status = Trial.RUNNING
        if resumed:
            return next(number for number, one in self.started.items() if one is chosen)
        self.started[trial] = chosen
        return chosen.config

    def report(self, trial, resource, loss):
        asked = self.started[trial]
        result = {"loss": loss, "training_iteration": resource, "trial_id": asked.trial_id}
        decision = self.scheduler.on_trial_result(self, asked, result)
        self.last[asked.trial_id] = result
        if decision == schedulers.TrialScheduler.STOP:
            self.stop_trial(asked)
        else:
            self.searcher.on_trial_result(asked.trial_id, result)
            if decision == schedulers.TrialScheduler.PAUSE:
                asked.status = Trial.PAUSED
        return decision

    def end(self, trial):
        self.stop_trial(self.started.pop(trial))

    def queue(self):
        """New trials, as many as may wait for a worker and as the searcher gives."""
        while sum(one.status == Trial.PENDING for one in self.live.values()) < self.queued:
            trial_id = f"{self.made:08d}"
            config = self.searcher.suggest(trial_id)
            if config is None or config == Searcher.FINISHED:
                return
            self.made += 1
            self.live[trial_id] = Trial("training", config=config, trial_id=trial_id, stub=True)
            self.scheduler.on_trial_add(self, self.live[trial_id])

    def get_trials(self):
        return list(self.live.values())

    get_live_trials = get_trials

    def stop_trial(self, trial):
        """One that is over already may be stopped again."""
        if trial.status == Trial.RUNNING:
            result = self.last[trial.trial_id]
            self.scheduler.on_trial_complete(self, trial, result)
            self.searcher.on_trial_complete(trial.trial_id, result=result)
        elif trial.status != Trial.TERMINATED:
            self.scheduler.on_trial_remove(self, trial)
            self.searcher.on_trial_complete(trial.trial_id)
        trial.status = Trial.TERMINATED
        self.live.pop(trial.trial_id, None)
        self.last.pop(trial.trial_id, None)


if __name__ == "__main__":
    serve(Search)
