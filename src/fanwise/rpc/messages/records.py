"""The codec of control messages: typed values and records, without pickle.

A record is identified by its index in RECORDS, so changes of the list or of a record change the protocol. All workers
of a group run the same version, which they exchange first (`coordinator_server`).
"""

from ...links.plain import Plain
from ..autograd.failures import Failure
from ..autograd.parts import Coordinates
from ..autograd.running import Absent, Through
from ..devices.loans import Sight
from ..membership.coordinator import Confirm, Evict, FinishShutdown, Refuse, RequestCounts, SendUpdate
from ..membership.members import Departure, Hello, Member, Update
from ..references.orders import (
    Batch,
    ChildAccepted,
    Cut,
    Drain,
    Drained,
    Forget,
    ForkRequest,
    GlobalId,
    NeverCame,
    Release,
    Unmade,
)
from ..worker_info import WorkerKey

RECORDS = (
    *(Member, Departure, Update, Hello),
    *(SendUpdate, Confirm, Refuse, Evict, RequestCounts, FinishShutdown),
    *(WorkerKey, GlobalId, Batch, ForkRequest, ChildAccepted, Release, Forget, Unmade, Cut, NeverCame, Drain, Drained),
    *(Through, Absent, Failure, Coordinates),
    Sight,
)  # fmt: skip

control_codec = Plain(RECORDS)
