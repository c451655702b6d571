"""Links: authenticated calls between processes. Loads no torch.

    frames (quiet)     messages cut out of bytes, lengths checked before memory is asked for
    calls (quiet)      which calls are open
    outstanding (quiet)  what is out with others, by id
    codec, plain       objects to bytes and back: as pickles, and values of a fixed list
    pickler            one way to pickle, for links and for the calls of rpc
    hub                the loop of a process
    runner_threads     threads that take turns at driving a hub, and run the user's code that comes in
    counts (quiet)     what a link has carried, as numbers
    link               calls both ways with one peer: what the caller holds, what the peer answers
    waiters            threads that wait for answers while another reads
    sender             the writing half of a link
    peers              who is at the other end, and its death; process_state: whether a process lives, or is stopped
    message_limits     how large a message may be here
    runtime_folder     where sockets, lock files and status files of this user lie
    status_files       what running programs say of themselves, for whoever looks
    shared_secret      the secret of a cluster: made, read, and refused when it is weak

    transports/        what carries bytes: memory, Unix sockets, encryption between hosts; listening and dialling
    security/          handshake, certificates, keys
    flow_control/      how many calls of a peer may wait
    shared_memory/     big buffers on one host

The layers above use what is named here, and `codec` for what travels inside other messages. Between hosts they use
`transports.tcp`, imported where a link is made: it loads `ssl` and `cryptography`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .counts import LinkCounts as LinkCounts
    from .frames import Limits as Limits
    from .hub import Hub as Hub
    from .hub import Timer as Timer
    from .link import Fail as Fail
    from .link import Link as Link
    from .link import NeverSent as NeverSent
    from .link import Reply as Reply
    from .link import Request as Request
    from .peers import Ending as Ending
    from .peers import Peer as Peer
    from .transports.unix import UnixListener as UnixListener
    from .transports.unix import dial as dial
    from .transports.unix import memory_links as memory_links
    from .transports.unix import new_key as new_key
    from .transports.unix import private_folder as private_folder

# By the file that has them. Loaded on first use: a process that only pickles for others makes no link.
_NAMES_IN = {
    "counts": ("LinkCounts",),
    "frames": ("Limits",),
    "hub": ("Hub", "Timer"),
    "link": ("Fail", "Link", "NeverSent", "Reply", "Request"),
    "peers": ("Ending", "Peer"),
    "transports.unix": ("UnixListener", "dial", "memory_links", "new_key", "private_folder"),
}
_HOME_OF = {name: home for home, names in _NAMES_IN.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'fanwise.links' has no attribute {name!r}; it has {', '.join(_HOME_OF)}")
        value = globals()[name] = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
        return value


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
