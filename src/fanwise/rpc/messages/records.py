"""The book-keeping of rpc as bytes: plain values, and the records of its parts, each known by its place in this list.

Whoever changes the list, or a record's fields, changes the protocol: workers of one group run one version, which is the
first thing that they tell each other (`coordinator_server`).
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
    *(Member, View, Change, Hello),
    *(WorkerKey, GlobalId, Batch, ForkRequest, ChildAccepted, Release, Forget, Unmade, Cut, NeverCame, Drain, Drained),
    *(Through, Absent, Failure, Coordinates),
    Sight,
)  # fmt: skip

book_keeping = Plain(RECORDS)
