"""One call, on both sides: sent by the caller, served by the callee, and what came of it.

    sending       calls are sent: which link, the message, room at the other end
    call          what users get of `rpc_async`: a future that can be cancelled and awaited
    call_future   a call that has left: whoever waits reads its own answer
    queued_call   a call that waits for its link; queued_request: the same for book-keeping
    serving       calls of others: opened, run and answered; coroutines: the loop of those that are such
    sendable_errors  what callers are told of a function that failed
    outcomes      errors that hold nothing alive, and waits that hear Ctrl-C
    torch_futures  wait_all, Ctrl-C and places of torch's own futures, changed while this process is a worker

Knows no reference and no gradient. What users call is in `calls`, a level above.
"""
