"""What a run found, for people and for later runs: tables, failures, JSON, the difference to an earlier run."""

import collections
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Result = dict[str, Any]  # Any: text and numbers

_COLUMNS = (("n", "n"), ("pass", "pass"), ("fail", "fail"), ("timeout", "t/out"), ("skip", "skip"), ("flaky", "flaky"))
_ERROR_LINE = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")
_LINE_CHARS = 160


def show(results: Iterable[Result], wall_s: float) -> None:
    """Print the counts by group and verdict, and each failure in a line."""
    results = list(results)
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for result in results:
        for key in (result["group"], f"verdict:{result['verdict']}", "TOTAL"):
            counts[key].update([result["status"], "n", *(["flaky"] if result.get("flaky") else [])])
    print(f"\n{'':18s}" + "".join(f" {title:>5s}" for _, title in _COLUMNS))
    for key in sorted(counts):
        print(f"{key:18s}" + "".join(f" {counts[key][column]:5d}" for column, _ in _COLUMNS))
    print(f"wall {wall_s:.0f} s, sum of test times {sum(result['s'] for result in results):.0f} s")
    for result in results:
        if is_bad(result):
            print(f"  {result['status'].upper()} [{result['verdict']}] {result['id']}: {_last_line(result['msg'])}")


def is_bad(result: Result) -> bool:
    """Whether the test did not pass, and was not skipped."""
    return result["status"] in ("fail", "timeout")


def _last_line(message: str) -> str:
    lines = [line for line in message.strip().splitlines() if line.strip()] or [""]
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    return (errors or lines)[-1][:_LINE_CHARS]


def write(path: Path, about: Mapping[str, Any], results: Iterable[Result], wall_s: float) -> None:  # Any: text
    """Write all to a file that `compare` reads."""
    whole = {
        **about,
        "wall_s": round(wall_s, 1),
        "python": sys.version.split()[0],
        "results": sorted(results, key=lambda result: str(result["id"])),
    }
    path.write_text(json.dumps(whole, indent=1))


def compare(path: Path, results: Iterable[Result]) -> None:
    """Print what differs from an earlier run."""
    before = {result["id"]: result["status"] for result in json.loads(path.read_text())["results"]}
    now = {result["id"]: result["status"] for result in results if result["id"] in before}
    different = [test_id for test_id, status in now.items() if status != before[test_id]]
    print(f"compared with {path}: {len(different)} different of {len(now)}")
    for test_id in different:
        print(f"  {test_id}: {before[test_id]} -> {now[test_id]}")
