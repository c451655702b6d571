"""Two workers of one group: one has MXNet, the other has torch and needs no MXNet. Started by test_mxnet_legacy.py.

python mxnet_program.py torch file:///tmp/x/rendezvous
python mxnet_program.py mxnet file:///tmp/x/rendezvous
"""

import sys

import numpy as np
import torch

import fanwise.rpc as rpc


def gradient_there(x: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> tuple[float, object]:
    """Of 2 x.x, by the worker with MXNet."""
    import fanwise.tensor.with_mxnet as mxt

    value, gradient = mxt.value_and_grad(lambda array: 2 * mxt.sum(array * array))(mxt.from_numpy(x))
    return float(value), mxt.to_numpy(gradient)


def doubled_here(x: torch.Tensor) -> torch.Tensor:
    """By the worker with torch."""
    return 2 * x


def asks_torch(x: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> object:
    """The worker with MXNet calls the other in turn."""
    import fanwise.tensor.with_mxnet as mxt

    doubled = rpc.rpc_sync("torch", doubled_here, args=(torch.from_numpy(x),))
    return mxt.to_numpy(mxt.exp(mxt.from_numpy(doubled.numpy())))


def main(name: str, address: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=address, rpc_timeout=60)
    rpc.init_rpc(name, rank=["torch", "mxnet"].index(name), world_size=2, rpc_backend_options=options)
    if name == "torch":
        x = np.arange(4, dtype=np.float32)
        value, gradient = rpc.rpc_sync("mxnet", gradient_there, args=(x,))
        print(value, gradient.tolist())
        print(np.allclose(rpc.rpc_sync("mxnet", asks_torch, args=(x,)), np.exp(2 * x)))
    rpc.shutdown()


if __name__ == "__main__":
    # Functions travel by name, so this file is a module on both sides, and not only __main__.
    import mxnet_program

    mxnet_program.main(*sys.argv[1:])
