"""A pytest plugin: writes what becomes of each test, a line of JSON a phase, at once, so that a process which dies or
hangs has told how far it came. The file is named by FANWISE_GPU_CHECK_TOLD.
"""

import json
import os

import pytest


def _tell(**said: object) -> None:
    with open(os.environ["FANWISE_GPU_CHECK_TOLD"], "a") as file:
        file.write(json.dumps(said) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _tell(test=nodeid, when="began")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    why = ""
    if report.skipped:
        why = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        why = why.removeprefix("Skipped: ")
    elif report.failed:
        why = report.longreprtext
    _tell(test=report.nodeid, when=report.when, outcome=report.outcome, seconds=report.duration, why=why)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported has no tests to tell of."""
    if report.failed:
        _tell(test=report.nodeid, when="collect", outcome="failed", seconds=0.0, why=report.longreprtext)
