"""`syne_tune.backend.python_backend.python_backend`, where later releases have it."""

from collections.abc import Callable, Mapping
from typing import Any, final

from ....spaces import Space
from ...missing import refuse_options, refuses_names


@final
class PythonBackend:
    """A function that is run with each configuration in a process of its own, and its space.

    Args:
        tune_function: the objective. Unlike in Syne Tune it may use globals, closures and defaults, and its imports
            may stand outside of it.
        config_space: names to domains and constants.

    Raises:
        TypeError, ValueError: an option that is not here, or a space that makes no sense.
    """

    def __init__(
        self,
        tune_function: Callable[..., Any],  # Any: the user's objective
        config_space: Space | Mapping[str, Any],  # Any: domains and constants
        **others: object,
    ) -> None:
        refuse_options("PythonBackend", others, ("tune_function", "config_space"))
        self.tune_function = tune_function
        self.config_space = config_space if isinstance(config_space, Space) else Space(config_space)


__getattr__ = refuses_names(__name__)
