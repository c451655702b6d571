"""Waiting until the GPUs of a lease are free: the driver may hold the memory of a dead process for a moment.

NVML is called in threads, because loading it takes a second if no other program uses the GPU, and a broken GPU may
never answer. The event loop must not block on either.
"""

import logging
import threading
import time
from collections.abc import Callable

from ..links.hub import Hub
from .devices import gpu_memory_used, gpu_pids
from .leases import Lease

_log = logging.getLogger(__name__)

# Maximum wait for the driver to release the memory, and then for NVML to answer.
_RELEASE_S = 5.0
_ANSWER_S = 1.0
_POLL_S = 0.05
_NOISE_BYTES = 64 << 20


class GpuReservation:
    """The GPUs of a lease. Used on the event loop's thread.

    Attributes:
        pids: processes of the lease that may hold memory of the GPUs.
    """

    def __init__(self, lease: Lease) -> None:
        self.pids: set[int] = set()
        self._shares = lease.gpus
        self._used_before: dict[str, int | None] = {}

        def measure() -> None:
            self._used_before = {share.visible: gpu_memory_used(share.visible) for share in lease.gpus}

        self._measuring = threading.Thread(target=measure, name="fanwise-gpus", daemon=True)
        if self._shares:
            self._measuring.start()

    def on_free(self, hub: Hub, holder: str, callback: Callable[[], None]) -> None:
        """Call `callback` once the GPUs are free, at once if there are none. Warn about `holder` if that takes long."""
        if not self._shares:
            callback()
            return
        until_s = time.monotonic() + _RELEASE_S
        is_released = False

        def release(problem: str) -> None:
            nonlocal is_released
            if is_released:
                return
            is_released = True
            timer.cancel()
            if problem:
                _log.warning("the lease of %s is released although %s", holder, problem)
            callback()

        def poll() -> None:
            self._measuring.join()
            while (problem := self._problem()) and time.monotonic() < until_s:
                time.sleep(_POLL_S)
            hub.call_soon(lambda: release(problem))

        timer = hub.call_at(hub.now_s() + _RELEASE_S + _ANSWER_S, lambda: release("NVML does not answer"))
        threading.Thread(target=poll, name="fanwise-gpus", daemon=True).start()

    def _problem(self) -> str:
        """Describe memory that is still in use; empty if the GPUs are free."""
        for share in self._shares:
            pids = gpu_pids(share.visible)
            if pids is not None:
                if pids & self.pids:
                    return f"process {min(pids & self.pids)} is still listed on GPU {share.visible}"
            elif share.fraction == 1.0:
                before, used = self._used_before.get(share.visible), gpu_memory_used(share.visible)
                if before is not None and used is not None and used > before + _NOISE_BYTES:
                    return f"the memory of GPU {share.visible} is still in use"
        return ""
