"""The error for wrong usage."""


class UsageError(ValueError):
    """The command line is wrong, independent of this machine. The command exits with status 2."""
