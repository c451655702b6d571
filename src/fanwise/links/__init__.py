"""Links: authenticated calls between processes. Loads no torch.

    frames (quiet)     messages cut out of bytes, lengths checked before memory is asked for
    handshake (quiet)  both sides prove the key before the first frame
    calls (quiet)      which calls are open
    codec              objects to bytes and back
    wires              what carries bytes: memory, sockets
    hub                the loop of a process
    link               calls both ways with one peer
    asking             one call: what the caller holds, what the peer answers
    sender             the writing half of a link
    unix               listening, dialling and trust on one host

The layers above use what is named here, and `codec` for what travels inside other messages.
"""

from .asking import Reply as Reply
from .asking import Request as Request
from .frames import Limits as Limits
from .hub import Hub as Hub
from .hub import Timer as Timer
from .link import Ending as Ending
from .link import Link as Link
from .link import Peer as Peer
from .unix import UnixListener as UnixListener
from .unix import dial as dial
from .unix import memory_links as memory_links
from .unix import new_key as new_key
from .unix import private_folder as private_folder
