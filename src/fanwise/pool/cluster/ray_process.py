"""The Ray driver process (`with_ray`), seen from the pool: started, configured, and ended.

    settings (one line of JSON) --> with_ray.main   events (one line of JSON each) --> on_event, on its own thread

Settings are not passed on the command line or in the environment, because they contain the secret of the pool's links.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..runtime_environment import own_path

_BOOT = (
    "import json, sys; c = json.loads(sys.stdin.readline()); sys.path[:] = c['path']; "
    "from fanwise.pool.cluster import with_ray; with_ray.main(c)"
)
_EXIT_S = 15.0
_MAX_LINES = 20

Event = Mapping[str, Any]


class RayProcess:
    """The Ray driver process.

    Args:
        config: the settings for `with_ray.main`.
        log: file for its standard error, which includes Ray's messages.
        on_event: called with each event, and at the end with `{"kind": "gone", "text": ...}`.
    """

    def __init__(self, config: Mapping[str, object], log: Path, on_event: Callable[[Event], None]) -> None:
        self._log = log
        self._on_event = on_event
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C is for the pool, which ends this process
            )
        self.send({"path": own_path(), **config})
        self._thread = threading.Thread(target=self._read, name="fanwise-ray", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, values: Mapping[str, object]) -> None:
        """Send a line of JSON. Does nothing if the process has exited."""
        assert self._process.stdin is not None, "asked for a pipe"
        with contextlib.suppress(BrokenPipeError, ValueError):  # ValueError: the pipe is closed
            self._process.stdin.write(json.dumps(dict(values)) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None, "asked for a pipe"
        with self._process.stdout as lines:
            for line in lines:
                with contextlib.suppress(json.JSONDecodeError):  # printed by Ray
                    self._on_event(json.loads(line))
        self._process.wait()
        self._close_stdin()
        text = f"exit code {self._process.returncode}\n{self.last_lines()}".rstrip()
        self._on_event({"kind": "gone", "text": text})

    def last_lines(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-_MAX_LINES:])
        return ""

    def _close_stdin(self) -> None:
        assert self._process.stdin is not None, "asked for a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        """End the process and all host processes. Blocks until it has exited."""
        self._close_stdin()
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if threading.current_thread() is not self._thread:
            self._thread.join()
