"""The tuner: an asynchronous hyperparameter search, from its settings to its experiment.

    Tuner(objective, space, scheduler, stop) -> SearchSettings -> run() -> SearchRun -> Experiment
    Tuner.resume(name)                       -> SearchSettings from the record -> run() -> ...

All arguments are validated before any folder or process is created.
"""

import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal, overload

from ..base.home import experiments_folder
from ..base.nearest import did_you_mean, names_nearest_option
from ..pool import Capacity, Pool
from ..pool.backend import start_ahead
from ..pool.devices import find_machine
from ..pool.functions import name_of
from .experiment import Experiment, folder_of
from .program import ASK_AND_TELL, load_cluster, load_program
from .record.event_file import read_meta
from .record.names import check_name, new_name
from .record.replay import last_settings
from .runtime.background import RunningSearch
from .runtime.search_run import SearchRun, check_name_is_free
from .schedulers.scheduler import Scheduler
from .search_settings import SearchSettings, as_space
from .searchers.searcher import Mode, Searcher
from .signatures import check_signature
from .space import Space, object_categories, space_from_json
from .stopping import StoppingCriterion
from .trial_resources import default_devices_per_trial, max_workers, resolve_devices, trial_resources
from .values import checked_bool, checked_int
from .warm_start import WarmStart, read_warm_start


class Tuner:
    """An asynchronous search over the hyperparameters of an objective, on warm worker processes.

    Args:
        objective: function to optimize. Each trial calls it in a separate process with the configuration as keyword
            arguments. It calls `report(**metrics)` and may return a number or dict as its last report.
        space: dict of names to domains (`loguniform(...)`, ...) and constants, or a `Space`.
        scheduler: chooses configurations and decides after each report whether the trial continues, e.g.
            `ASHA(metric="loss", max_t=81)`. The tuner runs a copy. None: every trial runs to its end, and metric, mode,
            searcher and points_to_evaluate apply.
        stop: the stopping criterion. Required.
        metric: name of the reported value to optimize, or several names.
        mode: "min" or "max", one for all metrics or one per metric.
        searcher: a searcher, or its name ("random", "forest", ...). None: choose one by the number of objectives, the
            space, the stopping criterion and the number of workers. The choice is printed and recorded.
        constraints: constraints on every report, such as ["latency_ms <= 20"], if the scheduler has none.
        points_to_evaluate: configurations to try first. Missing values are drawn at random.
        n_workers: number of trials that run at a time. None: as many as the devices allow; if hosts can join the pool,
            the number follows them. `set_workers` changes it during the search.
        devices_per_trial: GPUs per trial (below 1: a share of one GPU), or CPUs if there is no GPU. 0: one CPU and no
            GPU. None: divide the machine among the workers (`fanwise.tune.trial_resources`).
        trial_timeout_s: seconds that a trial may run. None: no limit.
        stop_grace_s: seconds between asking a trial to stop and killing it.
        max_equal_failures: fail the search if the first `max_equal_failures` trials to finish all fail in the same way,
            or if every trial fails. None: do not fail the search because of failed trials.
        retries: number of times a crashed trial is restarted from its last checkpoint.
        checkpoints: root folder of the checkpoints, or an fsspec URL. Checkpoints are written to a subfolder named
            after the experiment, which must be empty or missing when the experiment begins. None: the experiment's
            folder.
        keep_checkpoints: keep the last checkpoint of every trial, not only those of the best trial and of trials that
            may be resumed.
        name: name of the experiment and its folder. None: derived from the objective's name and the time.
        print_update_interval: seconds between two tables if the output is not a terminal.
        asynchronous: if False, run trials in batches, and start a batch only when the last one has finished.
        reuse: run trials in processes that have run other trials. Trials then start faster, but are less isolated.
        random_seed: seed of the scheduler, the searcher and every trial. None: the scheduler's seed, or a random one.
        pool: pool to run on, which is left open. None: create one.
        warm_start: earlier experiments (names, paths or `Experiment`), data frames with one row per report, or a list
            of these, from which the searcher learns first. Trials that do not fit the space are skipped with a notice.
        callbacks: objects with any of the methods `on_start`, `on_trial_start`, `on_report`, `on_trial_end` and
            `on_end`. Each method takes one event (`fanwise.tune.callbacks.search_events`). Each object has a separate
            thread, which calls the methods in the order of the events.
        board: show the search in a browser while it runs, and print the address.
        quiet: print nothing.

    Raises:
        TypeError, ValueError: invalid settings, an objective whose arguments do not match the space, or a warm start
            without the metric or with another mode.
        ExperimentExistsError: an experiment of this name exists. It is a FileExistsError.
        LeaseError: a trial needs more devices than there are.
        NotInstalled: a library for the checkpoint URL or for the board is missing.

    Attributes:
        name: name of the experiment. `load_experiment(name)` reads the experiment, even while the search runs.
        path: the experiment's folder.
        scheduler: the tuner's copy of the scheduler.
        settings: the validated settings. `settings.seed` is the random seed in use.
    """

    @names_nearest_option
    def __init__(
        self,
        objective: Callable[..., Any],
        space: Space | Mapping[str, Any],
        scheduler: Scheduler | None = None,
        stop: StoppingCriterion | None = None,
        *,
        metric: str | Sequence[str] | None = None,
        mode: Mode | Sequence[Mode] = "min",
        searcher: Searcher | str | None = None,
        constraints: Sequence[str] = (),
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        n_workers: int | None = None,
        devices_per_trial: int | float | None = None,
        trial_timeout_s: float | None = None,
        stop_grace_s: float = 5.0,
        max_equal_failures: int | None = 3,
        retries: int = 0,
        checkpoints: str | os.PathLike[str] | None = None,
        keep_checkpoints: bool = False,
        name: str | None = None,
        print_update_interval: float = 30.0,
        asynchronous: bool = True,
        reuse: bool = False,
        random_seed: int | None = None,
        pool: Pool | None = None,
        warm_start: WarmStart | None = None,
        callbacks: Sequence[object] = (),
        board: bool = False,
        quiet: bool = False,
    ) -> None:
        space = as_space(space)
        _check_objective(objective, space)
        capacity = _capacity_of(pool)
        divides_machine = devices_per_trial is None and pool is None
        follows_hosts = n_workers is None and pool is not None and pool._cluster is not None
        devices_per_trial, n_workers = resolve_devices(
            capacity, devices_per_trial, n_workers, is_shared=pool is not None
        )
        settings = SearchSettings.create(
            space,
            scheduler,
            stop,  # type: ignore[arg-type]  # checked by SearchSettings
            metric=metric,
            mode=mode,
            searcher=searcher,
            constraints=constraints,
            points_to_evaluate=points_to_evaluate,
            n_workers=n_workers,
            devices_per_trial=devices_per_trial,
            divides_machine=divides_machine,
            follows_hosts=follows_hosts,
            trial_timeout_s=trial_timeout_s,
            stop_grace_s=stop_grace_s,
            max_equal_failures=max_equal_failures,
            retries=retries,
            checkpoints=checkpoints,
            keep_checkpoints=keep_checkpoints,
            asynchronous=asynchronous,
            reuse=reuse,
            random_seed=random_seed,
        )
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name must be a str or None, got {name!r}")
        name = new_name(name_of(objective), time.time(), os.urandom(8)) if name is None else check_name(name)
        path = experiments_folder() / name
        check_name_is_free(path)
        earlier_trials, summaries = read_warm_start(warm_start, settings)
        self._init(
            SearchRun(
                objective=objective,
                settings=settings,
                name=name,
                path=path,
                is_resumed=False,
                capacity=capacity,
                pool=pool,
                earlier=earlier_trials,
                summaries=summaries,
                callbacks=callbacks,
                print_update_interval=print_update_interval,
                board=board,
                quiet=quiet,
            )
        )

    def _init(self, search_run: SearchRun) -> None:
        self._search_run = search_run
        self.name = search_run.name
        self.path = search_run.path
        self.scheduler = search_run.scheduler
        self.settings = search_run.settings
        if search_run.pool is None and not search_run.cluster:
            start_ahead(search_run.objective)

    @classmethod
    @names_nearest_option
    def resume(
        cls,
        name_or_path: str | os.PathLike[str],
        *,
        objective: Callable[..., Any] | None = None,
        space: Space | Mapping[str, Any] | None = None,
        scheduler: Scheduler | None = None,
        stop: StoppingCriterion | None = None,
        n_workers: int | None = None,
        print_update_interval: float = 30.0,
        pool: Pool | None = None,
        callbacks: Sequence[object] = (),
        board: bool = False,
        quiet: bool = False,
    ) -> "Tuner":
        """Return a tuner whose `run()` resumes an experiment that finished, was interrupted, or was killed.

        Interrupted trials run first, each from its last checkpoint. Time limits exclude the time in which no tuner ran
        the search.

        Args:
            objective, space, scheduler: must equal the original ones. None: load from the experiment's folder.
            stop: a new stopping criterion. None: keep the last one.
            n_workers: a new number of workers. None: keep the last one, or as many as fit if it followed the hosts.
            pool: pool to run on, which is left open. None: create one, on the same cluster as the last run, if any.
            print_update_interval, callbacks, board, quiet: as in the constructor.

        Raises:
            RecordError: there is no such experiment, or its program cannot be loaded.
            NotInstalled, ClusterError: the cluster of the last run cannot be used.
            ValueError: the objective, space or scheduler differs from the original (the message shows how), or the
                search belongs to `open_search`.
        """
        folder = folder_of(name_or_path)
        meta = read_meta(folder)
        if meta["objective"] == ASK_AND_TELL:
            raise ValueError(
                f"the trials of {folder.name!r} are run by a program with the ask-and-tell interface. Resume it with "
                f"open_search(space, scheduler, name={folder.name!r})."
            )
        if objective is None or scheduler is None:
            saved_objective, saved_scheduler, saved_space = load_program(folder)
            objective = saved_objective if objective is None else objective
            scheduler = saved_scheduler if scheduler is None else scheduler
            space = saved_space if space is None else space
        space = space_from_json(meta["space"]) if space is None else as_space(space)
        settings = SearchSettings.from_json(meta, scheduler, space)
        if constraints := scheduler.constraints:  # otherwise keep the recorded ones, which were passed to the Tuner
            settings = replace(settings, constraints=constraints)
        settings.check_equal(meta, objective=name_of(objective))
        _check_objective(objective, space)
        last_n_workers, last_stop = last_settings(folder, meta)
        cluster = load_cluster(folder) if pool is None else None
        # The pool on the cluster is only needed to find the machines. `run` creates another.
        with Pool(**cluster) if cluster else nullcontext(pool) as open_pool:
            capacity = _capacity_of(open_pool)
        if n_workers is not None:
            checked_int("n_workers", n_workers, 1)
            settings = replace(settings, follows_hosts=False)
        elif settings.follows_hosts:
            n_workers = max_workers(capacity, trial_resources(capacity, settings.devices_per_trial))
        else:
            n_workers = last_n_workers
        settings = replace(settings, n_workers=n_workers, stop=last_stop if stop is None else stop)
        if settings.divides_machine and pool is None and n_workers != meta["n_workers"]:
            settings = replace(settings, devices_per_trial=default_devices_per_trial(capacity, n_workers))
        tuner = cls.__new__(cls)
        tuner._init(
            SearchRun(
                objective=objective,
                settings=settings,
                name=str(meta["name"]),
                path=folder,
                is_resumed=True,
                capacity=capacity,
                pool=pool,
                cluster=cluster,
                callbacks=callbacks,
                print_update_interval=print_update_interval,
                board=board,
                quiet=quiet,
            )
        )
        return tuner

    @overload
    def run(self, *, block: Literal[True] = True) -> Experiment: ...

    @overload
    def run(self, *, block: Literal[False]) -> RunningSearch: ...

    def run(self, *, block: bool = True) -> Experiment | RunningSearch:
        """Run the search until the stopping criterion is met, and return the experiment.

        With `block=False`, run the search in a thread, and return a `RunningSearch` as soon as the search has begun.
        The search is stopped when the program exits.

        Ctrl-C, or the stop button of a notebook, stops the running trials and keeps all results. A second Ctrl-C kills
        the trials.

        Raises:
            NotSendableError: the objective refers to an object that cannot be sent to a worker; the message names it.
            SearchFailedError: the first trials all failed in the same way, or every trial failed (see
                `max_equal_failures`).
            ValueError: no trial reports the scheduler's metric, or `run` was called before.
            RecordError: the record cannot be written, or another tuner writes to the experiment.
            ExperimentExistsError: an experiment of this name was created after this Tuner.
            CheckpointError: the checkpoint folder contains other files or cannot be written.
            ClosedError: the pool is closed, or `run` was called inside a job of a pool.
            SearchInterrupted: Ctrl-C was pressed. It is a KeyboardInterrupt with the attribute `experiment`.
            Exception: an exception of the scheduler or its searcher, in its original type.
        """
        checked_bool("block", block)
        if not block:
            return RunningSearch(self._search_run)
        return self._search_run.run(on_begin=lambda: None)

    # -- commands; each can be called from any thread ----------------------------------------------------------------

    def stop(self, reason: str = "stopped by hand") -> None:
        """End the search and ask the running trials to stop. A second call kills them. Does not block.

        Raises:
            ClosedError: the search is not running.
        """
        self._search_run.stop(reason)

    def pause(self, trial_id: int) -> None:
        """Pause a trial at its next report and free its worker, until `unpause` is called.

        The trial keeps its last checkpoint. Blocks until the search has accepted the command.

        Raises:
            TypeError, ValueError: trial_id is not a trial of the search, or the trial is over.
            ClosedError: the search is not running.
        """
        self._search_run.call("pause", trial_id)

    def unpause(self, trial_id: int) -> None:
        """Undo `pause`, so that the trial can resume when a worker is free. Blocks and raises like `pause`."""
        self._search_run.call("unpause", trial_id)

    def stop_trial(self, trial_id: int) -> None:
        """Stop one trial permanently. Blocks and raises like `pause`."""
        self._search_run.call("stop_trial", trial_id)

    def enqueue(self, config: Mapping[str, object]) -> None:
        """Use this configuration for the next new trial. Missing values are drawn at random.

        Blocks until the search has accepted the configuration.

        Raises:
            TypeError, ValueError: config is not a dict or not in the space, or the search starts no new trials.
            ClosedError: the search is not running.
        """
        self._search_run.call("enqueue", config)

    def set_workers(self, n_workers: int) -> None:
        """Change the number of trials that run at a time. Running trials are not interrupted.

        After an increase, new trials start at once, or as soon as the pool has devices for them. A synchronous search
        applies the new number to its next batch. Blocks until the search has accepted the number.

        Raises:
            TypeError, ValueError: n_workers is not an int of at least 1, or the search starts no new trials.
            ClosedError: the search is not running.
        """
        self._search_run.call("workers", n_workers)


def search(
    objective: Callable[..., Any],
    space: Space | Mapping[str, Any],
    *,
    metric: str | Sequence[str] | None = None,
    mode: Mode | Sequence[Mode] = "min",
    n_trials: int | None = None,
    seconds: float | None = None,
    n_workers: int | None = None,
    searcher: Searcher | str | None = None,
    scheduler: Scheduler | None = None,
    **options: Any,
) -> Experiment:
    """Search the hyperparameters of an objective. Shorthand for `Tuner(...).run()`; see `Tuner` for other arguments.

    Args:
        n_trials: number of trials to start. Required if `seconds` is None.
        seconds: time limit in seconds. Required if `n_trials` is None.
        options: other arguments of `Tuner`, such as constraints=, name=, callbacks= or quiet=.

    Raises:
        Exception: as `Tuner` and `Tuner.run`.

    >>> experiment = search(train, {"learning_rate": loguniform(1e-4, 1)}, metric="loss", n_trials=20)
    >>> experiment.best.config
    {'learning_rate': 0.0123}
    """
    names = {*inspect.signature(search).parameters, *inspect.signature(Tuner).parameters} - {"options", "stop"}
    for name in options.keys() - names:
        raise TypeError(f"search has no option {name!r}{did_you_mean(name, sorted(names))}")
    if n_trials is None and seconds is None:
        raise ValueError("search() needs an end: n_trials=20, seconds=600, or both")
    stop = StoppingCriterion(max_num_trials_started=n_trials, max_wallclock_time=seconds)
    options |= {"metric": metric, "mode": mode, "n_workers": n_workers, "searcher": searcher}
    return Tuner(objective, space, scheduler, stop, **options).run()


def _capacity_of(pool: Pool | None) -> Capacity:
    if pool is None:
        return Capacity((find_machine(),))
    if not isinstance(pool, Pool):
        raise TypeError(f"pool must be a Pool or None, got {pool!r}")
    return pool.capacity()


def _check_objective(objective: Callable[..., Any], space: Space) -> None:
    if not callable(objective):
        raise TypeError(f"the objective must be a function, got {objective!r}.\n  right:  Tuner(train, space, ...)")
    check_signature(objective, space.names, sometimes=space.conditions)
    object_categories(space)  # raises if the space has names in place of objects
