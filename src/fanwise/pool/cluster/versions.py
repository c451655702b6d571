"""Whether a node runs the same versions as the program whose jobs it is to run, and how to say that it does not.

Functions travel as code objects, which only the same Python (major.minor) reads; messages of ours change between
versions of fanwise; a model that one torch has saved another may read differently. Takes what was found, looks at
nothing itself.
"""

from collections.abc import Mapping

_ABSENT = "none"


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """What differs, one phrase for each; both by name. A name that `here` does not have is not compared.

    >>> differences({"Python": "3.11.7", "torch": "2.13.0+cpu"}, {"Python": "3.12.1", "torch": "2.13.0"})
    ['Python 3.12.1, and 3.11.7 here']
    """
    return [
        f"{name} {there.get(name, _ABSENT)}, and {version} here"
        for name, version in here.items()
        if _counted(name, there.get(name, _ABSENT)) != _counted(name, version)
    ]


def _counted(name: str, version: str) -> str:
    """What of a version must be the same: of Python the first two numbers; of others all but how they were built."""
    if name == "Python":
        return ".".join(version.split(".")[:2])
    return version.partition("+")[0]
