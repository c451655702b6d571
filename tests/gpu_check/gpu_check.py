"""Runs every test and benchmark that needs a GPU, and prints one table: what ran, failed, was slower than its peer.

    probe of the interpreter --no GPU--> says so, ends with 0
      --> each file of tests with a mark `gpu`, each of BENCHMARKS: a process of its own, with a time limit
      --> rows (gpu_rows.py) --> the table, and the end of what each failed part has printed; 1 if anything failed

    make gpu-check [GPU_PYTHON=python3] [ARGS="--only rpc --within-s 540"]

GPU_PYTHON is an interpreter that has a torch with CUDA. It is used as it is: nothing is installed, fanwise is taken
from this checkout, and libraries that it lacks are named. Without GPU_PYTHON it is that of `.venv`.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu_rows import Ended, Row, Seen, refusal, rows_of_benchmark, rows_of_tests, shown, status_of

_HERE = Path(__file__).resolve().parent
ROOT = _HERE.parents[1]
# Arguments with which each takes about two minutes on one GPU.
BENCHMARKS: Mapping[str, tuple[str, ...]] = {
    "first_kernel.py": ("--trials", "10"),
    "shared_gpu.py": ("--seconds", "8"),
    "rpc_gpu.py": ("--rounds", "3"),
    "tensor_gpu.py": ("--rounds", "5"),
    "parallel_gpu.py": ("--rounds", "2", "--epochs", "2"),
}
LIMIT_S = 900.0
_PROBE_S = 120.0
_LAST_LINES = 40
_MARKED = re.compile(r"^(@pytest\.mark\.gpu\b|pytestmark = pytest\.mark\.gpu\b)", re.MULTILINE)
_PROBE = """
import glob, json, os, sys
seen = {"torch": "", "gpus": [], "driver_gpus": 0, "problem": ""}
if os.environ.get("CUDA_VISIBLE_DEVICES") != "":
    seen["driver_gpus"] = len(glob.glob("/dev/nvidia[0-9]*"))
try:
    import torch
    seen["torch"] = torch.__version__
    if torch.cuda.is_available():
        x = torch.ones(64, 64, device="cuda")
        assert float((x @ x).sum()) == 64**3
        seen["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
except Exception as error:
    seen["problem"] = f"{type(error).__name__}: {error}"
json.dump(seen, sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A process to run: a file of tests, or a benchmark."""

    kind: Literal["tests", "benchmark"]
    name: str
    command: tuple[str, ...]
    limit_s: float = LIMIT_S


def parts_of(tests: Path, benchmarks: Mapping[str, tuple[str, ...]]) -> list[Part]:
    """All that exist: the tests first, which say whether figures mean anything."""
    marked = [path for path in sorted(tests.rglob("test_*.py")) if _MARKED.search(path.read_text())]
    settings = ("-c", str(_HERE / "settings.ini"), "--rootdir", str(ROOT), "--confcutdir", str(ROOT))
    pytest = (sys.executable, "-m", "pytest", *settings, "-p", "told", "-p", "no:cacheprovider", "-p", "no:randomly")
    found = [Part("tests", str(path.relative_to(tests.parent)), (*pytest, str(path))) for path in marked]
    for name, arguments in benchmarks.items():
        found.append(Part("benchmark", name, (sys.executable, str(ROOT / "benchmarks" / name), *arguments)))
    return found


def run(part: Part, folder: Path) -> list[Row]:
    """Run it to its end, or to the end of its time. Its output, both streams, goes to a file in `folder`."""
    told, log = folder / "told.jsonl", log_of(part, folder)
    told.unlink(missing_ok=True)
    paths = [str(ROOT / "src"), str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "FANWISE_GPU_CHECK_TOLD": str(told)}
    ended = _run(part, log, environment)
    if part.kind == "tests":
        lines = told.read_text().splitlines() if told.exists() else []
        return rows_of_tests(part.name, [each for line in lines if (each := _json(line)) is not None], ended)
    return rows_of_benchmark(part.name, _beside(log.read_text(errors="replace")), ended)


def _run(part: Part, log: Path, environment: Mapping[str, str]) -> Ended:
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            part.command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(part.limit_s)
        finally:
            # What it has started ends with it, after a good end too: the next part has the GPU for itself.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Ended(status, time.monotonic() - begun, part.limit_s)


def _json(line: str) -> Any:  # Any: of JSON
    """None for the line that its writer did not come to the end of."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _beside(printed: str) -> Any:  # Any: of JSON
    """The comparisons of a benchmark, from the result file that it has named."""
    named = re.findall(r"^written: (.*\.json)$", printed, re.MULTILINE)
    return json.loads((ROOT / named[-1]).read_text()).get("beside") if named else None


def log_of(part: Part, folder: Path) -> Path:
    return folder / (part.name.replace("/", "-").removesuffix(".py") + ".log")


def probe() -> Seen:
    """In a process of its own: a driver may hang, and whoever has looked keeps its files open."""
    try:
        done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_S)
    except subprocess.TimeoutExpired:
        return Seen("", driver_gpus=1, problem=f"looking for GPUs did not end within {_PROBE_S:.0f} s")
    found = _json(done.stdout)
    if found is None:
        return Seen("", driver_gpus=1, problem=f"looking for GPUs failed: {done.stderr.strip()[-300:]}")
    return Seen(found["torch"], tuple(found["gpus"]), found["driver_gpus"], found["problem"])


def missing() -> list[str]:
    """What pyproject.toml asks for and this interpreter has not at all; never torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_tests = [
        each for each in project["optional-dependencies"]["dev"] if re.match(r"(pytest|hypothesis)\b[^-]", each)
    ]
    return [each for each in [*project["dependencies"], *of_tests] if not _has(re.split(r"[^\w-]", each)[0])]


def _has(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return distribution == "torch"
    return True


def run_all(parts: Sequence[Part], folder: Path, within_s: float) -> list[Row]:
    """One after another, each told when it ends; what there is no time left for is a row too."""
    rows: list[Row] = []
    ends_s = time.monotonic() + within_s
    for part in parts:
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            rows.append(Row(part.name, "all of it", "skipped", why=f"the {within_s:.0f} s of --within-s were over"))
            continue
        say(f"== {part.name}")
        limited = Part(part.kind, part.name, part.command, min(part.limit_s, left_s))
        for row in run(limited, folder):
            rows.append(row)
            say(f"   {row.result}: {row.name}{'' if row.times is None else f', {row.times:.2f} times'} {row.why}")
    return rows


def say(text: str) -> None:
    """One line of progress, on stderr: stdout holds the table."""
    print(text, file=sys.stderr, flush=True)


def tell(parts: Sequence[Part], rows: Sequence[Row], folder: Path, seen: Seen) -> None:
    """Print the table, and below it the end of the log of each part with a failure; keep both in `folder`."""
    facts = f"GPU: {', '.join(seen.gpus)}; torch {seen.torch}; Python {sys.version.split()[0]}"
    text = f"{shown(rows)}\n\n{facts}; {time.strftime('%Y-%m-%d')}"
    (folder / "table.md").write_text(text + "\n")
    (folder / "rows.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print(text)
    failed = {row.part for row in rows if row.result == "failed"}
    for part in parts:
        if part.name in failed and log_of(part, folder).exists():
            last = log_of(part, folder).read_text(errors="replace").splitlines()[-_LAST_LINES:]
            print(f"\n-- the end of {log_of(part, folder)}", *last, sep="\n")
    print(f"\nAll that was printed: {folder}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu-check", description="every GPU test and GPU benchmark, one table")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="parts with this in their name")
    parser.add_argument("--within-s", type=float, default=float("inf"), help="what has not begun by then is left out")
    parser.add_argument("--list", action="store_true", help="name the parts and end")
    args = parser.parse_args()
    parts = [
        part
        for part in parts_of(ROOT / "tests", BENCHMARKS)
        if not args.only or any(text in part.name for text in args.only)
    ]
    if args.list:
        print("\n".join(part.name for part in parts))
        return 0
    seen = probe()
    refused = refusal(seen, sys.executable, missing())
    if refused is not None:
        print(refused[1])
        return refused[0]
    if not parts:
        print(f"gpu-check: no part has {' or '.join(args.only)!r} in its name; --list names them.")
        return 2
    folder = ROOT / ".bench-results" / f"gpu-check-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    rows = run_all(parts, folder, args.within_s)
    tell(parts, rows, folder, seen)
    return status_of(rows)


if __name__ == "__main__":
    sys.exit(main())
