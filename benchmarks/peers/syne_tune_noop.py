# mypy: ignore-errors
# The reason: syne_tune lives in an environment of its own, which the type checker does not see.
"""No-op trials with Syne Tune 0.16: its Python back end, random search, two workers.

What its current interface wants: `PythonBackend` comes from `syne_tune.backend` (the path the book imports it from is
an empty package now); `RandomSearch` takes `metrics=[...]` and `do_minimize=`; the function may use nothing from
outside itself, so everything is imported inside; a criterion `max_num_trials_started=n - 1` starts n trials, and
`wait_trial_completion_when_stopping` lets the last ones end by themselves. Every trial is a fresh interpreter. The
tuner looks for results every 5 s when all workers are busy; `--poll-fast` asks it to look every 0.1 s instead.
"""

import os
from pathlib import Path

import marks


def objective(x):
    import marks

    marks.mark()
    import torch  # noqa: F401
    from syne_tune import Reporter

    report = Reporter()
    for i in range(3):
        report(loss=x + i)


def main():
    args = marks.arguments("poll-fast")
    os.environ["SYNETUNE_FOLDER"] = str(args.folder)
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # a trial's interpreter starts elsewhere; it needs marks.py

    import syne_tune
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend import PythonBackend
    from syne_tune.config_space import uniform
    from syne_tune.optimizer.baselines import RandomSearch

    space = {"x": uniform(0, 1)}
    settings = {"sleep_time": 0.1} if args.poll_fast else {}
    run = marks.Run.begin(
        "syne-tune, polling every 0.1 s" if args.poll_fast else "syne-tune", syne_tune.__version__, args.folder
    )
    tuner = Tuner(
        PythonBackend(tune_function=objective, config_space=space),
        RandomSearch(space, metrics=["loss"], do_minimize=True, random_seed=1),
        StoppingCriterion(max_num_trials_started=args.trials - 1),
        n_workers=2,
        wait_trial_completion_when_stopping=True,
        tuner_name="noop",
        **settings,
    )
    tuner.run()
    run.end()


if __name__ == "__main__":
    main()
