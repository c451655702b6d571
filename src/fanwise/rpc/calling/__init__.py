"""One call, on the caller and on the callee.

    sender           sends calls: link, message, flow control
    call             `Call`, the future that `rpc_async` returns: can be canceled and awaited
    call_future      the future of a call that was sent
    queued_call      the future of a call that waits for a link; queued_request: the same for internal requests
    server           deserializes received calls, runs and answers them; coroutines: the asyncio loop that they run on
    cancellation     tells a running function that its call was canceled
    serializer       values to messages and back, with the metadata of autograd and references
    sendable_errors  errors of values that cannot be sent, and errors in a form that can be sent
    futures          waiting for futures, and copying their errors
    torch_futures    changes to torch's own futures while this process is a worker

The functions that users call are in `calls`, a level above.
"""
