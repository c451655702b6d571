"""Defaults of rpc, under torch's names. Times are in seconds; 0 means no limit."""

from typing import Final

# Not Final: programs change them.
DEFAULT_RPC_TIMEOUT_SEC: float = 60.0
DEFAULT_SHUTDOWN_TIMEOUT: float = 0.0
UNSET_RPC_TIMEOUT: Final = -1.0
DEFAULT_INIT_METHOD: Final = "env://"
DEFAULT_NUM_WORKER_THREADS: Final = 16
# Not in torch: how long a worker on another host may be silent or without a link.
HEARTBEAT_S: Final = 30.0
