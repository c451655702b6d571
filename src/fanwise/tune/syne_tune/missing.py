"""What programs ask of Syne Tune that is not here, and what fanwise has for it."""

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from ...base.nearest import did_you_mean

_MODELS = "BayesianOptimization is the searcher here that learns a model; more are in fanwise.tune"
_OURS = "with fanwise.tune.Tuner"

OUR_WAY: Mapping[str, str] = {
    **{name: f"use fanwise.tune.{name} {_OURS}" for name in ("BORE", "CQR", "TPE", "BOHB")},
    "KDE": f"use fanwise.tune.TPE {_OURS}",
    "SyncBOHB": f"use fanwise.tune.BOHB {_OURS}",
    **dict.fromkeys(("MOBSTER", "SyncMOBSTER"), f"use fanwise.tune.ASHA(searcher='bayesopt') {_OURS}"),
    "ZeroShotTransfer": "use fanwise.tune.Tuner(warm_start=), which takes earlier experiments",
    "BOTorch": "use BayesianOptimization, which is on BoTorch",
    **dict.fromkeys(("HyperTune", "DyHPO"), _MODELS),
    "GridSearch": f"use fanwise.tune.GridSearch {_OURS}",
    "REA": f"use fanwise.tune.RegularizedEvolution {_OURS}",
    "SyncHyperband": f"use fanwise.tune.Hyperband {_OURS}",
    "HyperbandScheduler": "use ASHA, or fanwise.tune.Hyperband for the synchronous one",
    "FIFOScheduler": f"use fanwise.tune.FIFOScheduler {_OURS}",
    "MedianStoppingRule": f"use fanwise.tune.MedianStopping {_OURS}",
    "PopulationBasedTraining": f"use fanwise.tune.PopulationBasedTraining {_OURS}",
    "MOASHA": f"use fanwise.tune.MOASHA {_OURS}",
    "LocalBackend": "give a function, not a script: PythonBackend(tune_function, config_space)",
    "SageMakerBackend": "a search runs on the devices of this machine: PythonBackend(tune_function, config_space)",
    "SimulatorBackend": "use fanwise.tune.simulate",
    "BlackboxRepositoryBackend": "use fanwise.tune.simulate, which reads tables",
    **dict.fromkeys(
        ("blackbox_repository", "simulator_backend"), "use fanwise.tune.simulate, which reads tables of your own"
    ),
    "tuner_callback": "give an object with on_report, on_trial_end, ... to fanwise.tune.Tuner(callbacks=[...])",
    "TunerCallback": "give an object with on_report, on_trial_end, ... to fanwise.tune.Tuner(callbacks=[...])",
    "PlateauStopper": "use one of StoppingCriterion's limits, or end a fanwise.tune.Tuner by its stop()",
    "load_experiments_df": "use fanwise.tune.load_experiment(name).results for each of fanwise.tune.list_experiments()",
    "schedulers": f"the schedulers of fanwise.tune go {_OURS}; baselines has RandomSearch, ASHA, BayesianOptimization",
    "searchers": f"the searchers of fanwise.tune go {_OURS}",
    "searcher": f"give a searcher to a scheduler of fanwise.tune, {_OURS}",
    "search_options": f"give a searcher with its options to a scheduler of fanwise.tune, {_OURS}",
    "max_failures": "use fanwise.tune.Tuner(max_equal_failures=), which ends a search whose trials all fail",
    "max_cost": "nothing is counted in cost here: report it, and set max_metric_value={'cost': ...}",
    "max_num_trials_finished": "use max_num_trials_completed, or max_num_trials_started",
    "callbacks": "use fanwise.tune.Tuner(callbacks=[...])",
    "metadata": "load_experiment(tuner.name).metadata has what fanwise keeps",
    "wait_trial_completion_when_stopping": "StoppingCriterion(max_num_trials_started=) lets running trials finish",
    "rotate_gpus": "each trial has a GPU of its own; other shares: fanwise.tune.Tuner(devices_per_trial=)",
    "num_gpus_per_trial": "use fanwise.tune.Tuner(devices_per_trial=)",
    "delete_checkpoints": "checkpoints that nobody needs are deleted; see fanwise.tune.Tuner(keep_checkpoints=)",
}
_SEE = "See what there is: fanwise explain from-syne-tune"


def refuses_names(module: str) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module here: AttributeError for what Python itself looks for, else ImportError."""

    def refuse(name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        way = OUR_WAY.get(name)
        hint = "" if way is None else f": {way}"
        raise ImportError(f"{module} has no {name!r}{hint}. {_SEE}", name=module)

    return refuse


def refuse_options(called: str, others: Iterable[str], known: Iterable[str]) -> None:
    """TypeError for an option that is not here, if there is one."""
    for name in others:
        way = OUR_WAY.get(name)
        hint = did_you_mean(name, known) if way is None else f": {way}"
        raise TypeError(f"{called} has no option {name!r}{hint}. {_SEE}")
