"""What the table of `make gpu-check` says: a row for each test and each comparison, from what its part has left.

    test file    began, outcome of each phase (lines of told.py), how its process ended  --> a row for each test
    benchmark    the comparisons in its result file, how its process ended               --> a row for each of them

Every part has a row, whatever became of it: one that died, hung or said nothing is a failure by itself. Knows no
processes and no files; gpu_check.py runs the parts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Result = Literal["passed", "faster", "as fast", "slower", "skipped", "failed"]

# Two timings of one program differ by as much.
NOISE = 0.05
# A cell is one line that a terminal shows.
_LONGEST = 110
_ERROR = re.compile(r"[\w.]*(Error|Exception|Exceeded|Warning)\b.*")


@dataclass(frozen=True, slots=True)
class Ended:
    """How the process of a part came to its end; `status` is None where it was killed after `limit_s` seconds."""

    status: int | None
    seconds: float
    limit_s: float

    @property
    def why(self) -> str:
        """Empty after a good end."""
        if self.status is None:
            return f"still running after {self.limit_s:.0f} s, killed"
        if self.status < 0:
            return f"died by signal {-self.status}"
        return f"ended with status {self.status}" if self.status else ""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. `times`: as fast as its peer, which `why` then names."""

    part: str
    name: str
    result: Result
    seconds: float | None = None
    times: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the probe of the interpreter found.

    Attributes:
        torch: its version; empty: there is none. problem: why it cannot be loaded, if it cannot.
        gpus: names of those that torch can use. driver_gpus: how many the driver of the machine shows.
    """

    torch: str
    gpus: tuple[str, ...] = ()
    driver_gpus: int = 0
    problem: str = ""


def refusal(seen: Seen, interpreter: str, missing: Sequence[str]) -> tuple[int, str] | None:
    """Exit status and text where nothing can be run; None where the parts may begin."""
    how = "Name an interpreter whose torch can use it: make gpu-check GPU_PYTHON=/path/to/python3"
    if not seen.gpus and not seen.driver_gpus:
        return 0, "gpu-check: there is no GPU here that may be used, so nothing was checked."
    if not seen.gpus:
        found = f"torch {seen.torch} of {interpreter} cannot use them" if seen.torch else f"{interpreter} has no torch"
        why = f" ({seen.problem})" if seen.problem else ""
        return 1, f"gpu-check: there are GPUs here, and {found}{why}. Nothing was checked.\n{how}"
    if missing:
        listed = " ".join(f"'{each}'" for each in missing)
        return 1, (
            f"gpu-check: {interpreter} lacks what fanwise and its tests need, so nothing was checked. torch is there "
            f"and stays as it is:\n  {interpreter} -m pip install {listed}"
        )
    return None


def rows_of_tests(part: str, told: Sequence[Mapping[str, Any]], ended: Ended) -> list[Row]:  # Any: JSON
    """Of one file of tests: a row for each, in the order in which they began."""
    tests: dict[str, list[Mapping[str, Any]]] = {}
    for each in told:
        tests.setdefault(str(each["test"]), []).append(each)
    rows = [_row_of_test(part, test.partition("::")[2] or test, phases, ended) for test, phases in tests.items()]
    if not rows:
        return [Row(part, "the file", "failed", ended.seconds, why=ended.why or "no test of it has run")]
    # pytest itself says 1 or 2 where something has failed that has its row.
    is_told = (
        any(row.result == "failed" for row in rows) if ended.status in (1, 2) else any(map(_is_cut, tests.values()))
    )
    if ended.why and not is_told:
        rows.append(Row(part, "the file", "failed", ended.seconds, why=f"after its tests: {ended.why}"))
    return rows


def _is_cut(phases: Sequence[Mapping[str, Any]]) -> bool:  # Any: JSON
    """Whether the process ended in the middle of this test."""
    return phases[-1]["when"] not in ("teardown", "collect")


def _row_of_test(part: str, name: str, phases: Sequence[Mapping[str, Any]], ended: Ended) -> Row:  # Any: JSON
    seconds = sum(float(each.get("seconds", 0.0)) for each in phases)
    for each in phases:
        if each.get("outcome") in ("failed", "skipped"):
            return Row(part, name, each["outcome"], seconds, why=_one_line(str(each.get("why", ""))))
    if _is_cut(phases):
        why = ended.why if ended.status is None else f"the process ended here: {ended.why or 'too early'}"
        return Row(part, name, "failed", why=why)
    return Row(part, name, "passed", seconds)


def rows_of_benchmark(part: str, beside: Sequence[Mapping[str, Any]] | None, ended: Ended) -> list[Row]:  # Any: JSON
    """Of one benchmark; `beside` as in its result file, None where it has written none."""
    if ended.why or beside is None:
        return [Row(part, "the benchmark", "failed", ended.seconds, why=ended.why or "it has written no results")]
    if not beside:
        return [Row(part, "the benchmark", "failed", ended.seconds, why="it compares with nothing")]
    return [_row_beside(part, each) for each in beside]


def _row_beside(part: str, each: Mapping[str, Any]) -> Row:  # Any: JSON
    times, name, peer = each["times"], str(each["ours"]), str(each["peer"])
    if times is None and each.get("no_peer") and not each.get("trouble"):
        return Row(part, name, "skipped", why=f"no {peer} to compare with: {_one_line(str(each['no_peer']))}")
    if times is None:
        return Row(part, name, "failed", why=f"not measured: {_one_line(str(each.get('trouble', '')))}")
    result: Result = "as fast"
    if times < 1 - NOISE:
        result = "slower"
    elif times > 1 + NOISE:
        result = "faster"
    return Row(part, name, result, times=float(times), why=f"beside {peer}")


def status_of(rows: Sequence[Row]) -> int:
    """Of the whole command. Slower than a peer is a fact, and no failure."""
    return int(any(row.result == "failed" for row in rows))


def shown(rows: Sequence[Row]) -> str:
    """The table in Markdown, failures first, then what is slower, and one line of counts below."""
    order: tuple[Result, ...] = ("failed", "slower", "skipped", "as fast", "faster", "passed")
    header = ("result", "part", "what", "s", "times as fast", "why, or beside whom")
    cells = [
        (
            row.result,
            row.part,
            row.name,
            "" if row.seconds is None else f"{row.seconds:.1f}",
            "" if row.times is None else f"{row.times:.2f}" if row.times >= 0.1 else f"{row.times:.1g}",
            row.why.replace("|", "/"),
        )
        for row in sorted(rows, key=lambda row: order.index(row.result))
    ]
    widths = [max(len(line[column]) for line in [header, *cells]) for column in range(len(header))]
    lines = [header, tuple("-" * width for width in widths), *cells]
    drawn = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in lines]
    counts = {result: sum(row.result == result for row in rows) for result in order}
    return "\n".join([*drawn, "", ", ".join(f"{count} {result}" for result, count in counts.items() if count)])


def _one_line(text: str) -> str:
    """What happened: the last error that is named, else the last line. pytest marks those of the error by an E."""
    said = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line.removeprefix("E ").strip() for line in said if line.startswith("E ")] or said
    line = next((line for line in reversed(lines) if _ERROR.fullmatch(line)), lines[-1] if lines else "")
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
