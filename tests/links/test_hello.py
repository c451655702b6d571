"""The hello: a fixed size in every version, and two versions that differ are both named."""

import pytest

from fanwise.base.errors import WireError
from fanwise.links.security.handshake import HELLO_SIZE, PROTOCOL, ProtocolMismatch, check_hello, hello


def test_the_layout_never_changes() -> None:
    assert hello("0.1.0", 1) == b"fanwise\0" + b"\1\0" + bytes(6) + b"0.1.0" + bytes(11)
    assert HELLO_SIZE == len(hello("0.1.0")) == len(hello("1000.1000.1000.dev1000+local", 65535)) == 32


def test_the_same_protocol_is_taken_from_any_version() -> None:
    check_hello(hello("0.9.0"), "them", "0.1.0")


@pytest.mark.parametrize("protocol", [0, PROTOCOL + 1, 65535])
def test_another_protocol_is_refused_with_both_versions(protocol: int) -> None:
    text = rf"^them runs fanwise 0\.9\.0 \(protocol {protocol}\), this process 0\.1\.0 \(protocol {PROTOCOL}\)"
    with pytest.raises(ProtocolMismatch, match=text):
        check_hello(hello("0.9.0", protocol), "them", "0.1.0")


@pytest.mark.parametrize("data", [bytes(32), b"fanwise1" + bytes(24), b"\xff" * 32])
def test_anything_else_is_no_hello(data: bytes) -> None:
    with pytest.raises(WireError, match="them holds the secret but is no process of fanwise") as refused:
        check_hello(data, "them", "0.1.0")
    assert not isinstance(refused.value, ProtocolMismatch)


def test_what_a_peer_sends_as_its_version_does_no_harm_to_a_terminal() -> None:
    data = bytearray(hello("x", PROTOCOL + 1))
    data[16:] = b"\x1b]0;title\x07\xff\n" + bytes(4)
    with pytest.raises(ProtocolMismatch) as refused:
        check_hello(bytes(data), "them", "0.1.0")
    assert "\x1b" not in str(refused.value) and str(refused.value).isascii()
