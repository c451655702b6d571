"""When the GPUs of a lease are really free again: a dead process may hold their memory for a moment longer.

NVML is asked in threads: loading it takes a second where no other program uses the GPU, and a broken GPU may not answer
at all. The hub's thread must not wait for it.
"""

import logging
import threading
import time
from collections.abc import Callable

from ..links.hub import Hub
from .devices import gpu_memory_used, gpu_pids
from .leases import Lease

_log = logging.getLogger(__name__)

# How long a lease waits for the driver to forget the dead process, and then for NVML to answer.
_BACK_S = 5.0
_ANSWER_S = 1.0
_LOOK_S = 0.05
_NOISE_BYTES = 64 << 20


class HeldGpus:
    """The GPUs of a lease, and how to see that `pids` no longer hold their memory. Used on the hub's thread."""

    def __init__(self, lease: Lease) -> None:
        self.pids: set[int] = set()
        self._shares = lease.gpus
        self._used_before: dict[str, int | None] = {}
        self._asking = threading.Thread(target=self._note_used, name="fanwise-gpus", daemon=True)
        if self._shares:
            self._asking.start()

    def _note_used(self) -> None:
        self._used_before = {share.visible: gpu_memory_used(share.visible) for share in self._shares}

    def when_free(self, hub: Hub, holder: str, then: Callable[[], None]) -> None:
        """Call `then` when they are free, at once without GPUs. After some seconds, call it with a warning."""
        if not self._shares:
            then()
            return
        until_s = time.monotonic() + _BACK_S
        answered = False

        def back(trouble: str) -> None:
            nonlocal answered
            if answered:
                return
            answered = True
            timer.cancel()
            if trouble:
                _log.warning("the lease of %s comes back although %s", holder, trouble)
            then()

        def look() -> None:
            self._asking.join()
            while (trouble := self._still_held()) and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
            hub.call_soon(lambda: back(trouble))

        timer = hub.call_at(hub.now_s() + _BACK_S + _ANSWER_S, lambda: back("NVML does not answer"))
        threading.Thread(target=look, name="fanwise-gpus", daemon=True).start()

    def _still_held(self) -> str:
        """Describe what is still there; empty when the GPUs are free."""
        for share in self._shares:
            pids = gpu_pids(share.visible)
            if pids is not None:
                if pids & self.pids:
                    return f"process {min(pids & self.pids)} is still listed on GPU {share.visible}"
            elif share.fraction == 1.0 and self._has_not_fallen(share.visible):
                return f"the memory of GPU {share.visible} has not come back"
        return ""

    def _has_not_fallen(self, visible: str) -> bool:
        before, now = self._used_before.get(visible), gpu_memory_used(visible)
        return before is not None and now is not None and now > before + _NOISE_BYTES
