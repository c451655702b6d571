"""Values on the command line: `key=value` as settings of a searcher or hyperparameters of a space.

max_t=81    grace_period=1e-2    type=promotion    layers=[64, 32]     read as YAML reads them
"""

from collections.abc import Sequence

import yaml

from ..base.nearest import did_you_mean
from ..tune import Space
from ..tune.space import check_partial_config
from .space_files import Loader
from .usage import UsageError


def read_settings(settings: Sequence[str], option: str) -> dict[str, object]:
    """Names and values; `option` is what the user calls them.

    Raises:
        UsageError: one is no `key=value`, or a name comes twice.
    """
    found: dict[str, object] = {}
    for setting in settings:
        name, sign, text = setting.partition("=")
        if not sign or not name.strip():
            raise UsageError(f"{option} must be key=value, e.g. learning_rate=0.1, got {setting!r}")
        if name.strip() in found:
            raise UsageError(f"{option} {name.strip()!r} is given twice")
        found[name.strip()] = read_value(text)
    return found


def read_value(text: str) -> object:
    """A number, truth value, list or mapping where the text is one, else the text."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError:
        return text


def read_config(space: Space, settings: Sequence[str]) -> dict[str, object]:
    """A part of a configuration. What is a number in YAML and a text in the space, as in a choice of texts, is a text.

    Raises:
        UsageError: no settings, or one is no `key=value`.
        ValueError: names what is not of the space.
    """
    if not settings:
        raise UsageError("say what to try, e.g. learning_rate=0.1")
    found = read_settings(settings, "a hyperparameter")
    texts = {name.strip(): text for name, _, text in (setting.partition("=") for setting in settings)}
    for name, value in found.items():
        if name not in space.names:
            raise ValueError(f"{name!r} is not in the space{did_you_mean(name, space.names)}")
        if not _fits(space, name, value) and _fits(space, name, texts[name]):
            found[name] = texts[name]
    return check_partial_config(space, found)


def _fits(space: Space, name: str, value: object) -> bool:
    try:
        check_partial_config(space, {name: value})
    except ValueError:
        return False
    return True
