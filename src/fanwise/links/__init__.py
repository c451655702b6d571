"""Links: authenticated calls between processes. Loads no torch.

    link               calls in both directions with one peer: the face of reader, writer and calls
    reader, writer     read and wait; write and queue
    calls, credits     the caller's half; how many calls of a peer may wait (pure)
    frames (pure)      messages in a stream of bytes, with limits
    codec, pickler     objects to bytes by pickle; errors
    plain              values of a fixed list of types to bytes, without pickle
    hub                the event loop of a process
    runner_threads     threads that drive a hub in turns and run the user's functions
    session (pure)     bytes to send again when the connection of a link is replaced
    counts (pure)      counters of a link
    peers              the peer, its death, and how a link ended
    process_state      whether a process of this host is alive or stopped
    memory_limits      the memory that this process may use, which limits messages
    runtime_folder     folder of sockets, lock files and status files of this user
    status_files       state of training runs for the boards of the same user
    shared_secret      the secret of a cluster

    transports/        wires: Unix sockets, TLS between hosts; listening and dialing
    security/          handshake, certificate
    shared_memory/     large buffers on one host

Between hosts, layers above import `transports.tcp` where a link is made: it loads `ssl` and `cryptography`.
"""
