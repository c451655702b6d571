"""No-op trials with fanwise: random search, two workers, a fresh process a trial or (`--reuse`) kept processes.

With `--ray` they are on the node of a Ray cluster, whose start is part of the cold start, as it is for Ray Tune.

At the end the marks of the trials are compared with the experiment's record: the same processes must stand in both, and
without `--reuse` no two trials may have run in one process.
"""

import contextlib
import os
import sys
from collections import Counter
from pathlib import Path

import marks

import fanwise
from fanwise import Pool
from fanwise.tune import FIFO, StoppingCriterion, Tuner, report, uniform
from fanwise.tune.record.event_file import read_events

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from with_ray import ENVIRONMENT, RayCluster  # isort: skip

NAME = "noop"


def objective(x: float) -> None:
    import marks

    marks.mark()
    import torch  # noqa: F401

    for i in range(3):
        report(loss=x + i)


def check(found: list[marks.Mark], folder: Path, *, reuse: bool) -> None:
    """Raise RuntimeError unless record and marks agree about the processes."""
    ready = [event.body for event in read_events(folder / NAME) if event.kind == "ready"]
    recorded = Counter((body["pid"], round(body["process_started_s"], 2)) for body in ready)
    marked = Counter((one.pid, round(one.process_started_s, 2)) for one in found)
    if recorded != marked:
        raise RuntimeError(
            f"record and marks differ: {recorded - marked} only recorded, {marked - recorded} only marked"
        )
    if not reuse and len(marked) != len(found):
        raise RuntimeError(f"{len(found)} trials ran in {len(marked)} processes, each should have had its own")


def main() -> None:
    args = marks.arguments("reuse", "ray")
    os.environ["FANWISE_HOME"] = str(args.folder)
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    how = f"fanwise{', Ray pool' * args.ray}, {'reuse' if args.reuse else 'fork'}"
    run = marks.Run.begin(how, fanwise.__version__, args.folder)
    with contextlib.ExitStack() as stack:
        pool = None
        if args.ray:
            os.environ.update(ENVIRONMENT)
            pool = stack.enter_context(Pool(ray=stack.enter_context(RayCluster(cpus=2)).address))
        tuner = Tuner(
            objective,
            {"x": uniform(0, 1)},
            FIFO(metric="loss", mode="min", random_seed=1),
            StoppingCriterion(max_num_trials_started=args.trials),
            n_workers=2,
            reuse=args.reuse,
            name=NAME,
            pool=pool,
        )
        tuner.run()
    found = run.end()
    if not args.ray:  # the record has when a process of another machine began by this one's clock, a little off
        check(found, args.folder, reuse=args.reuse)
    elif not args.reuse and len({(one.pid, one.process_started_s) for one in found}) != len(found):
        raise RuntimeError("two trials ran in one process, each should have had its own")


if __name__ == "__main__":
    main()
