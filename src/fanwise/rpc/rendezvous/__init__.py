"""Where the workers of a group meet: addresses, entrances, and the files that mark them on a host.

    addresses      what env://, tcp:// and file:// mean
    entrance       meeting on one host, by Unix sockets; entrance_tls: between hosts; choosing: which of them
    lock_files     which process holds an entrance on this host
    stale_files    what killed workers leave, removed

Opens and dials; who is let in, and what is said, is decided in `membership`.
"""
