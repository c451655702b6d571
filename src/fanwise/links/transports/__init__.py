"""Transports: the wires that carry the bytes of a link, and how links are accepted and dialed.

    wires        the interface; sockets and memory          tls              the wire between hosts, and its handshake
    unix         links on one host                          tcp              links between hosts
    acceptor     connections during their handshake         tcp_sockets      addresses, ports, options
                                                            tcp_watch        whether the peer's host responds
    resumable    a stream over several connections          port_probe       whether the process at a port still runs
    pending_connections (pure)   limits of the number of handshakes
    spinning (pure)              whether a waiting thread polls before it sleeps

Messages are unknown here. `tls` and `tcp` load `ssl` and `cryptography`.
"""
