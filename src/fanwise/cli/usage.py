"""Wrong use of a command that only the command itself can see, as by two options that do not go together."""


class UsageError(ValueError):
    """The command line is wrong, whatever there is on this machine. Ends the command with status 2."""
