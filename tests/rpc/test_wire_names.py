"""The messages of rpc, by name."""

from typing import get_args

from fanwise.links import frames
from fanwise.links.hub import Hub
from fanwise.links.runner_threads import RunnerThreads
from fanwise.rpc import TensorPipeRpcBackendOptions, WorkerInfo
from fanwise.rpc.agent import Agent
from fanwise.rpc.autograd.service import Service
from fanwise.rpc.membership.coordinator import Action, StartTimer
from fanwise.rpc.membership.coordinator_server import EVENTS
from fanwise.rpc.messages.records import control_codec

NAMES_MAX = 45


def test_there_are_few_kinds_of_messages() -> None:
    hub, options = Hub(name="names"), TensorPipeRpcBackendOptions()
    agent = Agent(WorkerInfo("w0", 0), hub, RunnerThreads(hub, name="names", limit=1), options=options)
    Service(agent)
    between_agents = ["control", "call", "reply", "hello", *agent._handlers]
    agent.close()
    records = [kind for kind in control_codec._codes if kind.__module__.startswith("fanwise.rpc.references")]
    of_references = [kind.__name__ for kind in records if kind.__name__ != "Batch"]  # which the method "refs" carries
    to_coordinator = ["join", "beat", "pending", *EVENTS]
    to_members = [action.__name__ for action in get_args(Action) if action is not StartTimer]
    names = [*frames._KINDS, *between_agents, *of_references, *to_coordinator, *to_members]
    assert len(names) <= NAMES_MAX, names
