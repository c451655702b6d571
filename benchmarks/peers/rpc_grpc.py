# mypy: ignore-errors
# The reason: grpc lives in an environment of its own, which the type checker does not see.
"""What one writes by hand on gRPC: a function and its arguments pickled into bytes, one generic method that runs them.

No encryption and no authentication, over a Unix socket in a private folder; messages of any size. The callee serves
with eight threads.
"""

import multiprocessing
import os
import pickle
import tempfile
from concurrent.futures import ThreadPoolExecutor

import grpc
import torch
from rpc_measures import serve

UNLIMITED = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Else the server cancels calls of which more than some thousand wait.
    ("grpc.server.max_pending_requests", 1 << 20),
    ("grpc.server.max_pending_requests_hard_limit", 1 << 20),
]


def run(request, _context):
    function, args = pickle.loads(request)
    return pickle.dumps(function(*args))


def callee(address, ready):
    torch.set_num_threads(1)
    server = grpc.server(ThreadPoolExecutor(8), options=UNLIMITED)
    handlers = {"Run": grpc.unary_unary_rpc_method_handler(run)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Callee", handlers)])
    server.add_insecure_port(address)
    server.start()
    ready.set()
    server.wait_for_termination()


class Started:
    def __init__(self, future):
        self.future = future

    def wait(self):
        return pickle.loads(self.future.result())


class Stub:
    def __init__(self, channel):
        self.method = channel.unary_unary("/Callee/Run")

    def call(self, function, *args):
        return pickle.loads(self.method(pickle.dumps((function, args))))

    def start(self, function, *args):
        return Started(self.method.future(pickle.dumps((function, args))))


def main():
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        address, ready = f"unix:{os.path.join(folder, 'callee')}", context.Event()
        process = context.Process(target=callee, args=(address, ready), daemon=True)
        process.start()
        ready.wait(60)
        with grpc.insecure_channel(address, options=UNLIMITED) as channel:
            serve(Stub(channel), grpc.__version__)
        process.terminate()
        process.join()


if __name__ == "__main__":
    main()
