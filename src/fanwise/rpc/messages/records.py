"""The codec of control messages: typed values and records, without pickle.

A record is identified by its index in RECORDS, so changes of the list or of a record change the protocol. All workers
of a group run the same version, which they exchange first (`coordinator_server`).
"""

from ...links.plain import Plain
from ..autograd.failures import Failure
from ..autograd.parts import Coordinates
from ..autograd.running import Absent, Through
from ..devices.loans import Sight
from ..membership.members import Change, Hello, Member, View
from ..references.orders import (
    Batch,
    ChildAccepted,
    Drain,
    Drained,
    Forget,
    ForkRequest,
    GlobalId,
    Release,
    Unmade,
)
from ..worker_info import WorkerKey

RECORDS = (
    *(Member, View, Change, Hello),
    *(WorkerKey, GlobalId, Batch, ForkRequest, ChildAccepted, Release, Forget, Unmade, Drain, Drained),
    *(Through, Absent, Failure, Coordinates),
    Sight,
)  # fmt: skip

control_codec = Plain(RECORDS)
