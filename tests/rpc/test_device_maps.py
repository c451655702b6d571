"""Device maps: where tensors arrive, and the checks in torch's words. No GPU is needed to say where one would go."""

import pytest
import torch

from fanwise.rpc.devices import DeviceMaps, check_local, check_targets
from fanwise.rpc.messages.pickling import is_self_explanatory

CPU = torch.device("cpu")


def cuda(*indices: int) -> list[torch.device]:
    return [torch.device("cuda", index) for index in indices]


ZERO, ONE, TWO = cuda(0, 1, 2)


def test_without_a_map_devices_keep_their_names() -> None:
    maps = DeviceMaps({"c": {ZERO: ONE}}, ())
    assert [maps.map_call("b", ONE), maps.map_reply("b", ONE), maps.map_call("b", CPU)] == [ONE, ONE, CPU]
    assert maps.map_to("b") == {}


def test_answers_come_back_the_other_way() -> None:
    maps = DeviceMaps({"b": {ZERO: ONE, ONE: ZERO, CPU: TWO}}, ())
    assert [maps.map_call("b", device) for device in (ZERO, ONE, CPU)] == [ONE, ZERO, TWO]
    assert [maps.map_reply("b", device) for device in (ONE, ZERO, TWO)] == [ZERO, ONE, CPU]


def test_the_cpu_needs_no_entry() -> None:
    maps = DeviceMaps({"b": {ZERO: ONE}}, ())
    assert (maps.map_call("b", CPU), maps.map_reply("b", CPU)) == (CPU, CPU)


def test_a_device_without_an_entry_cannot_be_sent() -> None:
    maps = DeviceMaps({"b": {ZERO: ONE}}, ())
    with pytest.raises(
        RuntimeError, match=r"no entry for cuda:1 in the device map to worker b: \{'cuda:0': 'cuda:1'\}"
    ) as there:
        maps.map_call("b", ONE)
    with pytest.raises(RuntimeError, match="no entry for cuda:0 in the device map to this worker") as here:
        maps.map_reply("b", ZERO)
    assert is_self_explanatory(there.value) and is_self_explanatory(here.value)  # raised as it is, as torch does


def test_right_maps_pass() -> None:
    check_local("a", DeviceMaps({"b": {ZERO: TWO, CPU: CPU}}, ()), ["a", "b"], 1)
    check_local("a", DeviceMaps({"b": {ONE: ZERO}}, [ONE]), ["a", "b"], 2)
    check_targets("a", "b", {ZERO: TWO}, (3, []))
    check_targets("a", "b", {ZERO: TWO, CPU: CPU}, (3, ["cuda:2"]))


def test_a_callee_may_yet_come_to_a_dynamic_group() -> None:
    check_local("a", DeviceMaps({"later": {ZERO: ZERO}}, ()), None, 1)


@pytest.mark.parametrize(
    ("maps", "text"),
    [
        (DeviceMaps({}, [ONE, ONE]), "Node a has duplicated devices"),
        (DeviceMaps({}, [TWO]), "Node a has devices with invalid indices"),
        (DeviceMaps({"z": {ZERO: ONE}}, ()), "Node a has invalid target node names in its device maps"),
        (DeviceMaps({"b": {ZERO: ONE, ONE: ONE}}, ()), "Node a has duplicated target devices in its device map for b"),
        (DeviceMaps({"b": {TWO: ONE}}, ()), "Node a has source devices with invalid indices in its device map for b"),
        (DeviceMaps({"b": {ZERO: ONE}}, [ONE]), "Node a has unexpected source devices in its device map for b"),
    ],
)
def test_a_wrong_map_is_said_in_torchs_words(maps: DeviceMaps, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_local("a", maps, ["a", "b"], 2)


def test_wrong_targets_are_said_in_torchs_words() -> None:
    with pytest.raises(ValueError, match="Node a has target devices with invalid indices in its device map for b"):
        check_targets("a", "b", {ZERO: TWO}, (2, []))
    with pytest.raises(ValueError, match="Node a has unexpected target devices in its device map for b"):
        check_targets("a", "b", {ZERO: TWO}, (3, ["cuda:1"]))
