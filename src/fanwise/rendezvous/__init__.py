"""Rendezvous of the processes of a group. Used by rpc and parallel. Loads no torch.

rendezvous   open_rendezvous: the rendezvous at an address
addresses    the meaning of env://, tcp:// and file://, and the addresses of this host
unix         meeting within one host, by Unix sockets
tls          meeting between hosts
"""
