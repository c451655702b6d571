"""Memory of the tuner a finished trial, over 20,000 trials of 10 reports each. Takes some minutes.

    this process --starts--> the search (this file again, with --search), in a process of its own
        |  every 20 ms: how many trials have begun? at every 1,000th: memory of that process, from /proc
        +- trials write one byte each to a file when they begin; its size is their number

The growth between trial 2,000 and trial 20,000 is divided by 18,000: what the tuner needs once, and what its caches
take in the beginning, is not in it. Anonymous memory is what the tuner keeps; all resident memory also has pages of
mapped files (such as the index of the write-ahead log), which the kernel takes back when it needs them.

    python benchmarks/tuner_memory.py [--trials 20000]
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring import finish, machine, say, scratch_folder, table

EVERY_TRIALS = 1_000
NUM_REPORTS = 10
LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory of the tuner's process when `trials` trials had begun."""

    trials: int
    resident_bytes: int
    anonymous_bytes: int


def objective(x: float, folder: str) -> None:
    """Ten reports, after one byte for the count."""
    from fanwise.tune import report

    with open(Path(folder) / "begun", "ab", buffering=0) as file:
        file.write(b".")
    for i in range(NUM_REPORTS):
        report(loss=x + i)


def search(folder: Path, num_trials: int) -> None:
    """The measured process: one search, whose processes are used again so that it takes minutes and not an hour."""
    from fanwise.tune import FIFO, StoppingCriterion, Tuner, uniform

    os.environ["FANWISE_HOME"] = str(folder)
    tuner = Tuner(
        objective,
        {"x": uniform(0, 1), "folder": str(folder)},
        FIFO(metric="loss", mode="min", random_seed=1),
        StoppingCriterion(max_num_trials_started=num_trials),
        n_workers=2,
        reuse=True,
        name="memory",
        quiet=True,
    )
    tuner.run()


def sample(pid: int, trials: int) -> Sample:
    """Read the memory of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = {line.partition(":")[0]: line.split()[1] for line in lines if line.endswith(" kB")}
    return Sample(trials, int(kilobytes["VmRSS"]) * 1024, int(kilobytes["RssAnon"]) * 1024)


def watch(child: "subprocess.Popen[bytes]", begun: Path, num_trials: int) -> list[Sample]:
    """Samples at every EVERY_TRIALS-th trial until the search has begun its last one.

    Raises:
        RuntimeError: the search ended before.
    """
    samples: list[Sample] = []
    while len(samples) < num_trials // EVERY_TRIALS:
        if child.poll() is not None:
            raise RuntimeError(f"the search ended with exit status {child.returncode} after {len(samples)} samples")
        num_begun = begun.stat().st_size if begun.exists() else 0
        if num_begun >= (len(samples) + 1) * EVERY_TRIALS:
            samples.append(sample(child.pid, num_begun))
            say(f"  {num_begun} trials: {samples[-1].anonymous_bytes / 2**20:.1f} MiB")
        time.sleep(LOOK_EVERY_S)
    return samples


def measured(num_trials: int) -> list[Sample]:
    """Run the search in a process of its own and watch it to its end."""
    with scratch_folder() as folder:
        arguments = ["--search", str(folder), "--trials", str(num_trials)]
        child = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.DEVNULL)
        try:
            samples = watch(child, folder / "begun", num_trials)
            if child.wait() != 0:
                raise RuntimeError(f"the search ended with exit status {child.returncode}")
        finally:
            child.terminate()
            child.wait()
    return samples


def shown(samples: list[Sample]) -> str:
    """The table: growth from the second sample (2,000 trials) to the last, over the trials between."""
    first, last = samples[1], samples[-1]
    trials = last.trials - first.trials
    between = f"{first.trials:,} to {last.trials:,} trials"
    anonymous = (last.anonymous_bytes - first.anonymous_bytes) / trials
    resident = (last.resident_bytes - first.resident_bytes) / trials
    rows = [
        ["anonymous memory, bytes a finished trial", f"{anonymous:.0f}", between],
        ["all resident memory, bytes a finished trial", f"{resident:.0f}", between],
        ["resident at the end, MiB", f"{last.resident_bytes / 2**20:.0f}", f"{last.trials:,} trials"],
    ]
    return table([f"tuner process, {NUM_REPORTS} reports a trial", "measured", "over"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="memory of the tuner a finished trial")
    parser.add_argument("--trials", type=int, default=20_000, help=f"at least {3 * EVERY_TRIALS}")
    parser.add_argument("--search", type=Path, help="used by the benchmark itself: run the search in this folder")
    args = parser.parse_args()
    if args.search is not None:
        search(args.search, args.trials)
        return
    if args.trials < 3 * EVERY_TRIALS:
        parser.error(f"--trials must be at least {3 * EVERY_TRIALS}, got {args.trials}")
    facts = machine()
    samples = measured(args.trials)
    finish("tuner_memory", [shown(samples)], {"samples": [asdict(one) for one in samples]}, facts=facts)


if __name__ == "__main__":
    main()
