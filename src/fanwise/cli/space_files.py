"""Search spaces as YAML files, and settings on the command line, whose values are YAML, too.

learning_rate: {loguniform: [1e-2, 1], prior: 0.1, confidence: high}
batch_size: {qrandint: {lower: 32, upper: 256, q: 32}}
optimizer: {choice: [sgd, adam]}
momentum: {uniform: [0, 0.99], when: {optimizer: sgd}}    # exists only with this value
max_epochs: 10                              # a number, text or truth value is a constant
layers: {constant: [128, 64]}               # and so is this
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ..base.nearest import did_you_mean
from ..tune import Space, constant, parameter
from ..tune.space import check_partial_config
from ..tune.space.domains import DOMAIN_TYPES
from .console import UsageError

_PARAMETER_KEYS = ("when", "prior", "confidence")
_LISTS = ("choice", "ordinal", "logordinal")  # take one list; the others a list of settings
_EXAMPLE = "\n  learning_rate: {loguniform: [0.01, 1]}"


class _Loader(yaml.SafeLoader):
    """Reads numbers as in YAML 1.2 (`1e-2` is a text in PyYAML, which implements 1.1). Repeated names are errors."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # Any: YAML
        names = [key.value for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_space(path: Path) -> Space:
    """Return the space of a YAML file.

    Raises:
        UsageError: the file or an entry is invalid.
    """
    body = _body_of(path)
    if not isinstance(body, dict) or not body or not all(isinstance(name, str) for name in body):
        raise UsageError(f"{path} must map names of hyperparameters to domains, e.g.{_EXAMPLE}")
    try:
        return Space({name: _domain_or_constant(name, entry) for name, entry in body.items()})
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error


def _body_of(path: Path) -> object:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise UsageError(f"the space file {str(path)!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: {error}") from error
    except yaml.YAMLError as error:
        where = str(error).replace("<unicode string>", str(path))
        raise UsageError(f"{path} is not YAML: {where}") from error


def _domain_or_constant(name: str, entry: object) -> object:
    if isinstance(entry, list):
        raise ValueError(
            f"{name} is a bare list, which is ambiguous:\n"
            f"  one of these values for each trial:     {name}: {{choice: [...]}}\n"
            f"  all of them, the same for every trial:  {name}: {{constant: [...]}}"
        )
    if isinstance(entry, str) and (match := re.match(rf"({'|'.join(DOMAIN_TYPES)})\s*\(", entry)):
        raise ValueError(
            f"{name}: write {{{match[1]}: [...]}} instead of the call {entry!r} (as a text: {{constant: {entry!r}}})"
        )
    if not isinstance(entry, dict):
        return entry
    more = {key: value for key, value in entry.items() if key in _PARAMETER_KEYS}
    rest = [(kind, arguments) for kind, arguments in entry.items() if kind not in more]
    if len(rest) != 1:
        raise ValueError(f"{name} must name one domain, got {', '.join(str(kind) for kind, _ in rest) or 'none'}")
    inner = _inner(name, *rest[0])
    try:
        return parameter(inner, **more) if more else inner
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name!r}: {error}") from error


def _inner(name: str, kind: object, arguments: object) -> object:
    if kind == "constant":
        return constant(arguments)
    if kind not in DOMAIN_TYPES:
        raise ValueError(
            f"{name}: no domain {kind!r}{did_you_mean(kind, DOMAIN_TYPES)} (a mapping as constant: {{constant: ...}})"
        )
    domain = DOMAIN_TYPES[str(kind)]
    if not isinstance(arguments, list | dict):
        raise ValueError(f"{name}: {kind} needs its bounds, e.g. {{{kind}: [1, 10]}}, got {arguments!r}")
    try:
        if isinstance(arguments, dict):
            return domain(**arguments)
        return domain(arguments) if kind in _LISTS else domain(*arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def read_settings(settings: Sequence[str], option: str) -> dict[str, object]:
    """Return {name: value} of settings such as `max_t=81` and `layers=[64, 32]`. Values that are not YAML are texts.

    `option`: name of the settings in errors.

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
        try:
            values[name.strip()] = yaml.load(text, _Loader)
        except yaml.YAMLError:
            values[name.strip()] = text
    return values


def read_config(space: Space, settings: Sequence[str]) -> dict[str, object]:
    """Return a partial configuration. A number is read as text if the space has only the text, as in a choice of texts.

    Raises:
        UsageError: a setting is not `key=value`.
        ValueError: a name or value is not in the space.
    """
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
