"""Authentication of links.

    handshake (pure)   on one host: both sides prove that they hold a key
    certificates       between hosts: TLS contexts from the shared secret (loads `ssl` and `cryptography`)
    hello (pure)       between hosts: the first bytes inside TLS, with the version of the protocol

Uses no socket. The secret itself is in `shared_secret`, one level above.
"""
