"""Validation of pool and job settings. Errors name the setting. Pure.

Invalid numbers (bools, NaN, negative values) usually come from a bug in the caller's arithmetic. They are refused here,
because otherwise they would cause errors in other processes.
"""

import json
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


def require_int(name: str, value: object, *, least: int | None = None, or_none: bool = False) -> None:
    """Raise TypeError or ValueError unless `value` is an int of at least `least` (not a bool), or None with `or_none`.

    >>> require_int("cpus", 0, least=1)
    Traceback (most recent call last):
    ValueError: cpus must be at least 1, got 0
    """
    if value is None and or_none:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        expected = "an int or None" if or_none else "an int"
        raise TypeError(f"{name} must be {expected}, got {value!r} ({type(value).__name__})")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def require_bool(name: str, value: object) -> None:
    """Raise TypeError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r} ({type(value).__name__})")


def grace_of(grace_s: object) -> float:
    """Return the grace period of a stop as a finite number of seconds."""
    seconds = _number("grace_s", grace_s, "a number of seconds")
    if not 0 <= seconds < math.inf:
        raise ValueError(f"grace_s must be a number of seconds of at least 0, got {grace_s!r}")
    return seconds


def limit_of(within_s: object) -> float | None:
    """Return a timeout in seconds; None for no limit, which infinity means too. Negative values become 0.

    >>> limit_of(None), limit_of(3), limit_of(float("inf")), limit_of(-0.001)
    (None, 3.0, None, 0.0)
    """
    if within_s is None:
        return None
    seconds = _number("within_s", within_s, "a number of seconds or None")
    if math.isnan(seconds):
        raise ValueError(f"within_s must be a number of seconds or None, got {within_s!r}")
    return None if seconds == math.inf else max(0.0, seconds)


def _number(name: str, value: object, expected: str) -> float:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be {expected}, got {value!r} ({type(value).__name__})")
    return float(value)


# -- clusters ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The cluster of a pool; see `Pool`."""

    address: str
    bundles: tuple[Mapping[str, float], ...]
    runtime_env: Mapping[str, Any] | None
    start_within_s: float

    def __str__(self) -> str:
        return f"ray {self.address}"

    def as_arguments(self, absolute: Callable[[str], str]) -> dict[str, Any]:
        """Return equivalent arguments of `Pool` as JSON values, with absolute paths.

        >>> ClusterSettings("auto", (), {"working_dir": "."}, 60.0).as_arguments(lambda path: "/me")["runtime_env"]
        {'working_dir': '/me'}
        """
        environment = None if self.runtime_env is None else dict(self.runtime_env)
        if environment is not None and "://" not in (folder := str(environment.get("working_dir", "://"))):
            environment["working_dir"] = absolute(folder)
        return {
            "ray": self.address,
            "bundles": [dict(bundle) for bundle in self.bundles] or None,
            "runtime_env": environment,
            "start_within_s": self.start_within_s,
        }


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Where hosts join a pool, and the secret that they must have; see `Pool`."""

    host: str
    port: int
    secret: str = field(repr=False)
    start_within_s: float

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def split_address(name: str, address: object) -> tuple[str, int]:
    """Return the host and the port of an address.

    >>> split_address("listen", "10.0.0.1:7070"), split_address("listen", "[fd00::1]:7070")
    (('10.0.0.1', 7070), ('fd00::1', 7070))
    """
    if not isinstance(address, str):
        raise TypeError(f"{name} must be host:port, as '10.0.0.1:7070', got {address!r}")
    host, _, port = address.rpartition(":")
    if not host.strip("[]") or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{name} must be host:port, as '10.0.0.1:7070', got {address!r}")
    return host.strip("[]"), int(port)


def cluster_of(ray: object, bundles: object, runtime_env: object, start_within_s: float) -> ClusterSettings | None:
    """Return the cluster settings of a pool, or None for a local pool. Raises TypeError or ValueError.

    >>> cluster_of("auto", [{"CPU": 0}], None, 60.0)
    Traceback (most recent call last):
    ValueError: each of bundles needs a whole number of CPUs, at least 1, as {'CPU': 1}; got {'CPU': 0}
    """
    if not 0 < _number("start_within_s", start_within_s, "a number of seconds") < math.inf:
        raise ValueError(f"start_within_s must be a number of seconds above 0, got {start_within_s!r}")
    if ray is None:
        for name, value in (("bundles", bundles), ("runtime_env", runtime_env)):
            if value is not None:
                raise ValueError(f"{name} is for a pool on a cluster: say Pool(ray='auto', {name}=...).")
        return None
    if not isinstance(ray, str):
        raise TypeError(f"ray must be 'auto' or the address of a cluster, as '10.0.0.1:6379', got {ray!r}")
    if ray.startswith("ray://"):
        raise ValueError(
            f"ray={ray!r} is an address of Ray Client, whose program is outside the cluster: nodes could not reach it. "
            f"Run the program on a node of the cluster, with ray='auto'."
        )
    if ray != "auto" and not ray.rpartition(":")[2].isdecimal():
        raise ValueError(f"ray must be 'auto' or host:port, as '10.0.0.1:6379', got {ray!r}")
    return ClusterSettings(ray, _bundles(bundles), _runtime_env(runtime_env), float(start_within_s))


def _bundles(bundles: object) -> tuple[Mapping[str, float], ...]:
    if bundles is None:
        return ()
    is_list = isinstance(bundles, Sequence) and not isinstance(bundles, str) and len(bundles) > 0
    if not is_list or not all(isinstance(bundle, Mapping) for bundle in bundles):  # type: ignore[attr-defined]
        raise TypeError(f"bundles must be a list of dicts, as [{{'CPU': 4, 'GPU': 1}}], got {bundles!r}")
    return tuple(_bundle(bundle) for bundle in bundles)  # type: ignore[attr-defined]


def _bundle(bundle: Mapping[object, object]) -> Mapping[str, float]:
    amounts: dict[str, float] = {}
    for kind, amount in bundle.items():
        if not isinstance(kind, str) or not isinstance(amount, int | float) or isinstance(amount, bool) or amount < 0:
            raise ValueError(f"each of bundles needs amounts by name, as {{'CPU': 4, 'GPU': 1}}; got {dict(bundle)!r}")
        amounts[kind] = float(amount)
    cpus, gpus = amounts.get("CPU", 0.0), amounts.get("GPU", 0.0)
    if cpus < 1 or cpus != int(cpus):
        raise ValueError(
            f"each of bundles needs a whole number of CPUs, at least 1, as {{'CPU': 1}}; got {dict(bundle)!r}"
        )
    if gpus != int(gpus):
        raise ValueError(f"a bundle has whole GPUs, which its jobs may share; got {dict(bundle)!r}")
    return amounts


def _runtime_env(runtime_env: object) -> Mapping[str, Any] | None:
    if runtime_env is None:
        return None
    if not isinstance(runtime_env, Mapping):
        raise TypeError(f"runtime_env must be a dict, as {{'working_dir': '.'}}, got {runtime_env!r}")
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(runtime_env)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"runtime_env must consist of strings, numbers, lists and dicts: {error}") from error
    return copy
