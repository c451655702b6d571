"""All errors of fanwise: `from fanwise.errors import WorkerLostError`. docs/errors.md explains each."""

from .base.errors import AuthenticationError as AuthenticationError
from .base.errors import CallCancelled as CallCancelled
from .base.errors import CancelledError as CancelledError
from .base.errors import CheckpointError as CheckpointError
from .base.errors import ClosedError as ClosedError
from .base.errors import ClusterError as ClusterError
from .base.errors import DataFileError as DataFileError
from .base.errors import DeadlineExceeded as DeadlineExceeded
from .base.errors import ExperimentExistsError as ExperimentExistsError
from .base.errors import FanwiseError as FanwiseError
from .base.errors import JoinError as JoinError
from .base.errors import LeaseError as LeaseError
from .base.errors import NotInstalled as NotInstalled
from .base.errors import NotSendableError as NotSendableError
from .base.errors import OwnerLostError as OwnerLostError
from .base.errors import RecordError as RecordError
from .base.errors import RemoteError as RemoteError
from .base.errors import SearchFailedError as SearchFailedError
from .base.errors import SearchInterrupted as SearchInterrupted
from .base.errors import SecretError as SecretError
from .base.errors import TrialStopped as TrialStopped
from .base.errors import WindowFullError as WindowFullError
from .base.errors import WireError as WireError
from .base.errors import WorkerLostError as WorkerLostError
