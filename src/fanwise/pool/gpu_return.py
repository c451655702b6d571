"""When the GPUs of a lease are really free again: a dead process may hold their memory for a moment longer."""

import logging
from collections.abc import Callable

from ..links import Hub
from .devices import gpu_memory_used, gpu_pids
from .leases import Lease

_log = logging.getLogger(__name__)

# How long a lease waits for the driver to forget the dead process.
_BACK_S = 5.0
_LOOK_S = 0.05
_NOISE_BYTES = 64 << 20


class HeldGpus:
    """The GPUs of a lease, and how to see that `pids` no longer hold their memory."""

    def __init__(self, lease: Lease) -> None:
        self.pids: set[int] = set()
        self._shares = lease.gpus
        self._used_before = {share.visible: gpu_memory_used(share.visible) for share in lease.gpus}

    def when_free(self, hub: Hub, holder: str, then: Callable[[], None]) -> None:
        """Call `then` when they are free, at the latest after 5 s, then with a warning; at once without GPUs."""
        until_s = hub.clock.now_s() + _BACK_S

        def look() -> None:
            still = self._still_held()
            now_s = hub.clock.now_s()
            if still and now_s < until_s:
                hub.call_at(now_s + _LOOK_S, look)
                return
            if still:
                _log.warning("the lease of %s comes back although %s", holder, still)
            then()

        look()

    def _still_held(self) -> str:
        """What is still there, for people; empty when the GPUs are free."""
        for share in self._shares:
            pids = gpu_pids(share.visible)
            if pids is not None:
                if pids & self.pids:
                    return f"process {min(pids & self.pids)} is still listed on GPU {share.visible}"
            elif share.fraction == 1.0 and self._has_not_fallen(share.visible):
                return f"the memory of GPU {share.visible} has not come back"
        return ""

    def _has_not_fallen(self, visible: str) -> bool:
        before, now = self._used_before[visible], gpu_memory_used(visible)
        return before is not None and now is not None and now > before + _NOISE_BYTES
