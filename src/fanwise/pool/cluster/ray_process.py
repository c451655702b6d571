"""The process that speaks with Ray, seen from the pool: started, told where the pool listens, heard, ended.

    settings (JSON, a line) --> with_ray.main   its news (JSON, a line each) --> on_news, on a thread of its own

It is told nothing on its command line or in its environment, as the secret of the pool's links is among it.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..launching import own_path

_BOOT = (
    "import json, sys; c = json.loads(sys.stdin.readline()); sys.path[:] = c['path']; "
    "from fanwise.pool.cluster import with_ray; with_ray.main(c)"
)
_ENDS_WITHIN_S = 15.0
_LAST_LINES = 20

News = Mapping[str, Any]  # Any: JSON


class RayProcess:
    """See the module. `on_news` gets each news; last of all `{"kind": "gone", "text": ...}`.

    Args:
        log: where what it prints as errors is kept, Ray's own among it.
    """

    def __init__(self, config: Mapping[str, object], log: Path, on_news: Callable[[News], None]) -> None:
        self._log = log
        self._on_news = on_news
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C is for the pool, which ends this in order
            )
        self.tell({"path": own_path(), **config})
        self._thread = threading.Thread(target=self._hear, name="fanwise-ray", daemon=True)

    def start(self) -> None:
        """Hear it from now on."""
        self._thread.start()

    def tell(self, values: Mapping[str, object]) -> None:
        """Say something. When it has ended, that is told by itself."""
        assert self._process.stdin is not None, "asked for a pipe"
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has gone, and its pipe may be closed
            self._process.stdin.write(json.dumps(dict(values)) + "\n")
            self._process.stdin.flush()

    def _hear(self) -> None:
        assert self._process.stdout is not None, "asked for a pipe"
        with self._process.stdout as lines:
            for line in lines:
                with contextlib.suppress(json.JSONDecodeError):  # something that Ray has printed
                    self._on_news(json.loads(line))
        self._process.wait()
        self._let_go()
        text = f"exit code {self._process.returncode}\n{self.last_lines()}".rstrip()
        self._on_news({"kind": "gone", "text": text})

    def last_lines(self) -> str:
        """The end of what it printed as errors; Ray's own words are among them."""
        with contextlib.suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
        return ""

    def _let_go(self) -> None:
        """It ends when its standard input does."""
        assert self._process.stdin is not None, "asked for a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        """End it, and what Ray runs for it. Blocks until that is done."""
        self._let_go()
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if threading.current_thread() is not self._thread:
            self._thread.join()
