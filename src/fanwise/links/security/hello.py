"""The first bytes on a link between hosts, once both sides have proved themselves: who speaks which protocol.

    | "fanwise" 0 | protocol u16 | 6 bytes, not read | version of fanwise, 16 bytes of ASCII, 0-padded |

Both sides send one and read one, and then what each adds to the keys of the link (`record_keys`). A hello has the same
size in every version, so that two that differ can still tell their users so, instead of taking each other's bytes for
garbage. Only what is authenticated comes here. Knows no socket.
"""

import struct

from ...base.errors import WireError
from ...base.text import printable_line

PROTOCOL = 5  # raised whenever a frame or a message changes its meaning

_LAYOUT = struct.Struct("<8sH6x16s")
_MAGIC = b"fanwise\0"
HELLO_SIZE = _LAYOUT.size


class OtherProtocol(WireError):
    """The other side is one of ours, of another version."""


def hello(version: str, protocol: int = PROTOCOL) -> bytes:
    """What this side says first."""
    return _LAYOUT.pack(_MAGIC, protocol, version.encode("ascii", "replace"))


def check_hello(data: bytes, peer: str, version: str) -> None:
    """Raises `OtherProtocol` when the other side speaks another one, `WireError` when it said no hello at all.

    Args:
        data: `HELLO_SIZE` bytes.
        peer: its address, for the message.
        version: our own, for the message.
    """
    magic, protocol, theirs = _LAYOUT.unpack(data)
    if magic != _MAGIC:
        raise WireError(f"{peer} holds the secret but is no process of fanwise. The connection was closed.")
    if protocol != PROTOCOL:
        shown = printable_line(theirs.rstrip(b"\0").decode("ascii", "backslashreplace"))
        raise OtherProtocol(
            f"{peer} runs fanwise {shown} (protocol {protocol}), this process {version} (protocol {PROTOCOL}).\n"
            f"Install the same version on all hosts."
        )
