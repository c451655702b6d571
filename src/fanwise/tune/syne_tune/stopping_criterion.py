"""`syne_tune.stopping_criterion`."""

from dataclasses import fields
from typing import Any

from ..stopping import StoppingCriterion as _StoppingCriterion
from .missing import refuse_options, refuses_names


def StoppingCriterion(**limits: Any) -> _StoppingCriterion:  # Any: checked there
    """When a search ends; limits and errors are those of `fanwise.tune.StoppingCriterion`."""
    known = [option.name for option in fields(_StoppingCriterion)]
    refuse_options("StoppingCriterion", (name for name in limits if name not in known), known)
    return _StoppingCriterion(**limits)


__getattr__ = refuses_names(__name__)
