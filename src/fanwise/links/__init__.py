"""Links: authenticated calls between processes. Loads no torch.

    frames (pure)     messages cut out of bytes, lengths checked before memory is asked for
    calls (pure)      which calls are open
    codec, plain       objects to bytes and back: as pickles, and values of a fixed list
    pickler            one way to pickle, for links and for the calls of rpc
    hub                the loop of a process
    runner_threads     threads that take turns at driving a hub, and run the user's code that comes in
    counts (pure)     what a link has carried, as numbers
    session (pure)    what is kept and sent again when the connection of a link is replaced
    link               calls both ways with one peer: what the caller holds, what the peer answers
    waiters            threads that wait for answers while another reads
    sender             the writing half of a link
    peers              who is at the other end, and its death; process_state: whether a process lives, or is stopped
    message_limits     how large a message may be here
    runtime_folder     where sockets, lock files and status files of this user lie
    status_files       what training runs report to the boards of the same user
    shared_secret      the secret of a cluster: made, read, and refused when it is weak

    transports/        wires: memory, Unix sockets, TLS between hosts; listening and dialing
    security/          handshake, certificate
    flow_control/      how many calls of a peer may wait
    shared_memory/     big buffers on one host

Between hosts, layers above import `transports.tcp` where a link is made: it loads `ssl` and `cryptography`.
"""
