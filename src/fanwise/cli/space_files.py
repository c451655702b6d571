"""Search spaces as YAML files.

    learning_rate: {loguniform: [0.01, 1]}
    batch_size: {randint: {lower: 32, upper: 256}}
    activation: {choice: [relu, tanh]}
    max_epochs: 10                              # anything that is no domain is a constant
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ..tune import Space, choice, finrange, lograndint, loguniform, randint, uniform
from ..tune.nearest import did_you_mean

_DOMAINS: Mapping[str, Callable[..., Any]] = {  # Any: the domain classes
    "uniform": uniform,
    "loguniform": loguniform,
    "randint": randint,
    "lograndint": lograndint,
    "choice": choice,
    "finrange": finrange,
}


def read_space(path: Path) -> Space:
    """The space of a YAML file. Raises ValueError that names the file and the entry when something is wrong."""
    try:
        body = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(body, dict) or not all(isinstance(name, str) for name in body):
        raise ValueError(f"{path} must map hyperparameters to domains, e.g.\n  learning_rate: {{loguniform: [0.01, 1]}}")
    try:
        return Space({name: _domain_or_constant(name, entry) for name, entry in body.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _domain_or_constant(name: str, entry: object) -> object:
    if not isinstance(entry, dict):
        return entry
    if set(entry) == {"constant"}:
        return entry["constant"]
    if len(entry) != 1:
        raise ValueError(f"{name} must name one domain, got {', '.join(map(str, entry))}")
    kind, arguments = next(iter(entry.items()))
    if kind not in _DOMAINS:
        raise ValueError(f"{name}: no domain {kind!r}{did_you_mean(kind, _DOMAINS)}")
    if kind == "choice" and isinstance(arguments, list):
        return choice(arguments)
    if isinstance(arguments, dict):
        return _DOMAINS[kind](**arguments)
    if isinstance(arguments, list):
        return _DOMAINS[kind](*arguments)
    raise ValueError(f"{name}: {kind} needs its bounds, e.g. {{{kind}: [1, 10]}}, got {arguments!r}")
