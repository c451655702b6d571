"""The `fanwise` command. Each command imports its modules when it runs, so that `fanwise --help` is fast."""

from .app import main as main
