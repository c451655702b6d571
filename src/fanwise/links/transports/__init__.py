"""What carries the bytes of a link, and how one is made: listening, dialling, and trust in who is there.

    wires        the interface, sockets and memory          sealed           the same between hosts, encrypted
    unix         links on one host                          tcp              links between hosts
                                                            tls              proofs, before the first record
    acceptor     strangers, until they have proved          tcp_sockets      addresses, ports, options
                 themselves                                 tcp_watch        whether the other host answers
    resumable    a stream over several connections          port_probe       whether the process at a port still runs
    pending_connections (pure)   how many strangers there may be
    spinning (pure)              whether who waits looks before it sleeps

Knows no message. `tls` and `tcp` load `ssl` and `cryptography`; the rest does not.
"""
