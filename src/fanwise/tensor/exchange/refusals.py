"""The errors of an exchange that every engine's file raises. A quiet file."""


def cannot_share(source: str, why: str) -> ValueError:
    """The error for copy=False where a copy is needed."""
    return ValueError(f"{source} cannot be converted without a copy: {why}. Leave copy out, or give copy=True.")


def no_such_type(engine: str, name: str, hint: str) -> TypeError:
    """The error for an element type that the other engine lacks."""
    return TypeError(f"{engine} has no element type {name}. Change it first: {hint}.")
