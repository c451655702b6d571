"""Transports: the wires that carry the bytes of a link, and how links are accepted and dialed.

    wires        the interface; sockets of one host         tls          the wire between hosts, and its handshake
    unix         links on one host                          tcp          links between hosts
    acceptor     connections during their handshake         liveness     whether a peer's host and port respond
    resumable    a stream over several connections

Messages are unknown here. `tls` and `tcp` load `ssl` and `cryptography`.
"""
