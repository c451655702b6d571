"""One call, on the caller and on the callee. The functions that users call are in `rpc.calls`, a level above.

sender        sends calls: link, message, flow control
call          `Call`, the future that `rpc_async` returns; call_future: calls that were sent or wait for a link
server        deserializes received calls, runs and answers them; coroutines: the asyncio loop that they run on
cancellation  tells a running function that its call was canceled
serializer    values to messages and back, with the metadata of autograd and references
errors        errors of values that cannot be sent, and of functions
futures       waiting for futures, copying their errors, and changes to torch's own futures
"""
