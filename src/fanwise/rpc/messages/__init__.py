"""The messages on the links of rpc.

serializer  values to messages and back, with the metadata of autograd, references and devices
messages    the format of calls, replies and control messages
pickling    user values                          metadata  metadata of a call. Pure
records     types of control messages            packing   packs many buffers into few. Pure
"""
