"""What travels on the links of rpc, as bytes.

    serializer  values to messages and back, with what autograd, references and devices add
    messages    the form of a message: calls, answers, book-keeping
    pickling    the user's values                    metadata (quiet)  what goes along with a call
    records     the book-keeping                     packing (quiet)   many pieces of memory in few

Sends nothing, and runs nothing of a call.
"""
