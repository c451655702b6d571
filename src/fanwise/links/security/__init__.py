"""Who may have a link: proofs and certificates.

    handshake (pure)  on one host: both sides prove that they hold a key
    certificates       what a process shows to other hosts, made from the secret (loads `ssl` and `cryptography`)
    record_keys        what seals the bytes between hosts (loads `cryptography`)
    hello (pure)      the first bytes between hosts: which version speaks

Opens no socket. The secret itself is made and read in `shared_secret`, a level above.
"""
