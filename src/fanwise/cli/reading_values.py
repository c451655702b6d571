"""Settings on the command line, `key=value`. Values are YAML: max_t=81, type=promotion, layers=[64, 32]."""

from collections.abc import Sequence

import yaml

from ..base.nearest import did_you_mean
from ..tune import Space
from ..tune.space import check_partial_config
from .space_files import Loader
from .usage import UsageError


def read_settings(settings: Sequence[str], option: str) -> dict[str, object]:
    """Return {name: value}. `option`: name of the settings in errors.

    Raises:
        UsageError: a setting is not `key=value`, or a name is repeated.
    """
    values: dict[str, object] = {}
    for setting in settings:
        name, sign, text = setting.partition("=")
        if not sign or not name.strip():
            raise UsageError(f"{option} must be key=value, e.g. learning_rate=0.1, got {setting!r}")
        if name.strip() in values:
            raise UsageError(f"{option} {name.strip()!r} is given twice")
        values[name.strip()] = read_value(text)
    return values


def read_value(text: str) -> object:
    """Return the value of a YAML text, or the text itself if it is not YAML."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError:
        return text


def read_config(space: Space, settings: Sequence[str]) -> dict[str, object]:
    """Return a partial configuration. A number is read as text if the space has only the text, as in a choice of texts.

    Raises:
        UsageError: there are no settings, or a setting is not `key=value`.
        ValueError: a name or value is not in the space.
    """
    if not settings:
        raise UsageError("no hyperparameter is given; write for example learning_rate=0.1")
    values = read_settings(settings, "a hyperparameter")
    texts = {name.strip(): text for name, _, text in (setting.partition("=") for setting in settings)}
    for name, value in values.items():
        if name not in space.names:
            raise ValueError(f"{name!r} is not in the space{did_you_mean(name, space.names)}")
        if not _fits(space, name, value) and _fits(space, name, texts[name]):
            values[name] = texts[name]
    return check_partial_config(space, values)


def _fits(space: Space, name: str, value: object) -> bool:
    try:
        check_partial_config(space, {name: value})
    except ValueError:
        return False
    return True
