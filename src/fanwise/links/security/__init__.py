"""Who may have a link: proofs, secrets and certificates. Opens no socket.

handshake (quiet)  on one host: both sides prove that they hold a key
shared_secret      between hosts: the secret of a cluster; made, read, and refused when it is weak
certificates       what a process shows to other hosts, made from the secret (loads `ssl` and `cryptography`)
hello (quiet)      the first bytes between hosts: which version speaks
"""
