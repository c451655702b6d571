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
    segment_table (quiet)  who holds which part of which shared segment
    segments, sharing  big buffers through shared memory
    peers              who is at the other end, and its death
    acceptor           strangers held until they have proved themselves, for every listener
    unix               listening, dialling and trust on one host
    shared_secret      the secret by which the hosts of a cluster know each other
    certificates       what a process shows to other hosts
    hello (quiet)      the first bytes between hosts: which version speaks
    tls, tcp           the wire between hosts; listening, dialling and trust there
    tcp_sockets        addresses, ports and options

The layers above use what is named here, and `codec` for what travels inside other messages. Between hosts they use
`tcp`, imported where a link is made: it loads `ssl` and `cryptography`.
"""

from .asking import Reply as Reply
from .asking import Request as Request
from .frames import Limits as Limits
from .hub import Hub as Hub
from .hub import Timer as Timer
from .link import Fail as Fail
from .link import Link as Link
from .link import NeverSent as NeverSent
from .peers import Ending as Ending
from .peers import Peer as Peer
from .unix import UnixListener as UnixListener
from .unix import dial as dial
from .unix import memory_links as memory_links
from .unix import new_key as new_key
from .unix import private_folder as private_folder
