"""The messages on the links of rpc. Imports nothing else of rpc; the features register their record types.

messages    the format of calls, replies and control messages
pickling    user values                          metadata  metadata of a call, addresses of actors. Pure
records     codec of control messages            ids       ids of workers, references, forks. Pure
"""
