"""Defaults of rpc, with the names that torch gives them. Times are seconds; 0 means without a limit."""

from typing import Final

# Not Final: programs set them.
DEFAULT_RPC_TIMEOUT_SEC: float = 60.0
DEFAULT_SHUTDOWN_TIMEOUT: float = 0.0
UNSET_RPC_TIMEOUT: Final = -1.0
DEFAULT_INIT_METHOD: Final = "env://"
DEFAULT_NUM_WORKER_THREADS: Final = 16
# Ours: how long a worker of another host may say nothing, or be without a link.
HEARTBEAT_S: Final = 30.0
