"""Authentication of links.

    handshake (pure)   on one host: both sides prove that they hold a key; between hosts: the version of the protocol
    certificates       between hosts: TLS contexts from the shared secret (loads `ssl` and `cryptography`)

Uses no socket. The secret itself is in `shared_secret`, one level above.
"""
