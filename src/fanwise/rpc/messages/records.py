"""The codec of control messages: typed values and records, without pickle.

Each feature registers its record types with a fixed first code, so a code does not depend on the order of imports. All
workers of a group run the same version, which they exchange when they join.
"""

from ...links.plain import Plain
from .ids import GlobalId, WorkerKey

control_codec = Plain((WorkerKey, GlobalId))
