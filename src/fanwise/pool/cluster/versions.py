"""The versions that must be the same on all hosts of a pool."""

import contextlib
import importlib.metadata
import platform
from collections.abc import Mapping

_COMPARED = ("fanwise", "torch")
_ABSENT = "none"


def versions() -> dict[str, str]:
    """Return the versions of Python and of installed packages that must be the same on all nodes."""
    installed = {"Python": platform.python_version()}
    for name in _COMPARED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def version_differences(expected: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """Return a phrase for each difference between the versions of this program and those of a node.

    Functions are sent as code objects, which need the same Python (major.minor). Messages between hosts depend on the
    version of fanwise, and saved models may depend on that of torch. Builds of one version (`+cpu`) are equal.

    >>> version_differences({"Python": "3.11.7", "torch": "2.13.0+cpu"}, {"Python": "3.12.1", "torch": "2.13.0"})
    ['Python 3.12.1, and 3.11.7 here']
    """
    return [
        f"{name} {installed.get(name, _ABSENT)}, and {version} here"
        for name, version in expected.items()
        if _significant(name, installed.get(name, _ABSENT)) != _significant(name, version)
    ]


def _significant(name: str, version: str) -> str:
    if name == "Python":
        return ".".join(version.split(".")[:2])
    return version.partition("+")[0]
