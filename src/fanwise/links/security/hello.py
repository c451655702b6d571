"""The first bytes in each direction of a link between hosts, inside TLS: the version of the protocol.

    | "fanwise" 0 | protocol u16 | 6 bytes, ignored | version of fanwise, 16 bytes of ASCII, 0-padded |

Each side sends one hello and reads one. The layout is the same in every version, so two processes of different
versions can name both versions in an error instead of failing on each other's frames. Pure: uses no socket.
"""

import struct

from ...base.errors import WireError
from ...base.text import printable_line

PROTOCOL = 6  # increased whenever a frame or a message changes its meaning

_LAYOUT = struct.Struct("<8sH6x16s")
_MAGIC = b"fanwise\0"
HELLO_SIZE = _LAYOUT.size


class ProtocolMismatch(WireError):
    """The peer holds the secret and speaks another version of the protocol."""


def hello(version: str, protocol: int = PROTOCOL) -> bytes:
    """Return the hello of this side."""
    return _LAYOUT.pack(_MAGIC, protocol, version.encode("ascii", "replace"))


def check_hello(data: bytes, peer: str, version: str) -> None:
    """Raise `ProtocolMismatch` when the peer speaks another protocol, `WireError` when `data` is no hello.

    Args:
        data: `HELLO_SIZE` bytes.
        peer: its address, for the message.
        version: our own, for the message.
    """
    magic, protocol, peer_version = _LAYOUT.unpack(data)
    if magic != _MAGIC:
        raise WireError(f"{peer} holds the secret but is no process of fanwise. The connection was closed.")
    if protocol != PROTOCOL:
        shown = printable_line(peer_version.rstrip(b"\0").decode("ascii", "backslashreplace"))
        raise ProtocolMismatch(
            f"{peer} runs fanwise {shown} (protocol {protocol}), this process {version} (protocol {PROTOCOL}).\n"
            f"Install the same version on all hosts."
        )
