"""The `fanwise` command: demo, devices, and searches run, listed, shown, drawn and exported.

`main` is what the command calls. Each command loads what it needs when it runs, so that `fanwise --help` is quick.
"""

from .app import main as main
