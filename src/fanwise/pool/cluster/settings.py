"""What a user may say of a pool's cluster, checked where it is said. Knows only values."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What a pool was told of its cluster; see `Pool`."""

    address: str
    bundles: tuple[Mapping[str, float], ...]
    runtime_env: Mapping[str, Any] | None  # Any: Ray's
    start_within_s: float

    def as_arguments(self, absolute: Callable[[str], str]) -> dict[str, Any]:  # Any: JSON
        """The arguments of `Pool` that say the same in any folder, as JSON values.

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


def cluster_of(ray: object, bundles: object, runtime_env: object, start_within_s: float) -> ClusterSettings | None:
    """The settings of a pool's cluster; None: it has none.

    Raises:
        TypeError, ValueError: they make no sense; the message names the setting.

    >>> cluster_of("auto", [{"CPU": 0}], None, 60.0)
    Traceback (most recent call last):
    ValueError: each of bundles needs a whole number of CPUs, at least 1, as {'CPU': 1}; got {'CPU': 0}
    """
    _check_seconds(start_within_s)
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


def _check_seconds(start_within_s: object) -> None:
    if not isinstance(start_within_s, int | float) or isinstance(start_within_s, bool):
        raise TypeError(f"start_within_s must be a number of seconds, got {start_within_s!r}")
    if not 0 < start_within_s < float("inf"):
        raise ValueError(f"start_within_s must be a number of seconds above 0, got {start_within_s!r}")


def _bundles(bundles: object) -> tuple[Mapping[str, float], ...]:
    if bundles is None:
        return ()
    is_list = isinstance(bundles, Sequence) and not isinstance(bundles, str) and len(bundles) > 0
    if not is_list or not all(isinstance(bundle, Mapping) for bundle in bundles):  # type: ignore[attr-defined]
        raise TypeError(f"bundles must be a list of dicts, as [{{'CPU': 4, 'GPU': 1}}], got {bundles!r}")
    return tuple(_bundle(bundle) for bundle in bundles)  # type: ignore[attr-defined]


def _bundle(bundle: Mapping[object, object]) -> Mapping[str, float]:
    taken: dict[str, float] = {}
    for kind, amount in bundle.items():
        if not isinstance(kind, str) or not isinstance(amount, int | float) or isinstance(amount, bool) or amount < 0:
            raise ValueError(f"each of bundles says how much of what, as {{'CPU': 4, 'GPU': 1}}; got {dict(bundle)!r}")
        taken[kind] = float(amount)
    if taken.get("CPU", 0) < 1 or taken["CPU"] != int(taken["CPU"]):
        raise ValueError(
            f"each of bundles needs a whole number of CPUs, at least 1, as {{'CPU': 1}}; got {dict(bundle)!r}"
        )
    if taken.get("GPU", 0) != int(taken.get("GPU", 0)):
        raise ValueError(f"a bundle has whole GPUs, which its jobs may share; got {dict(bundle)!r}")
    return taken


def _runtime_env(runtime_env: object) -> Mapping[str, Any] | None:
    if runtime_env is None:
        return None
    if not isinstance(runtime_env, Mapping):
        raise TypeError(f"runtime_env must be a dict, as {{'working_dir': '.'}}, got {runtime_env!r}")
    try:
        taken: dict[str, Any] = json.loads(json.dumps(dict(runtime_env)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"runtime_env must be of texts, numbers, lists and dicts: {error}") from error
    return taken
