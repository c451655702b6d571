"""Access control: which requests are refused, by their headers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.board.guard import Guard, Refusal, RequestInfo, host_name, is_loopback

GUARD = Guard("secret", "cookie", frozenset({"node7"}))
JSON = "application/json"


def refusal_with_cookie(request: RequestInfo) -> Refusal | None:
    return GUARD.refusal(replace(request, cookie="cookie"))


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:8321", "localhost"),
        ("LocalHost", "localhost"),
        ("localhost.", "localhost"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("[::1]:8321", "::1"),
        (None, None),
        ("", None),
        ("a b", None),
        ("host:port", None),
        ("user@host", None),
        ("host/path", None),
        ("one,two", None),
    ],
)
def test_a_malformed_host_header_has_no_name(host: str | None, name: str | None) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1:8321", "[::1]", "192.168.1.7:8321", "[fe80::1]:80"])
def test_addresses_and_localhost_are_answered(host: str) -> None:
    assert refusal_with_cookie(RequestInfo("GET", host)) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "node8", None, "0x7f000001"]
)
def test_unknown_host_names_are_refused(host: str | None) -> None:
    refusal = refusal_with_cookie(RequestInfo("GET", host))
    assert refusal is not None and refusal.status == 421


def test_requests_without_the_token_are_refused() -> None:
    for path in (
        RequestInfo("GET", "node7"),
        RequestInfo("POST", "node7", content_type=JSON),
        RequestInfo("GET", "localhost"),
    ):
        refusal = GUARD.refusal(path)
        assert refusal is not None and refusal.status == 401
    for wrong in ("", "secre", "secrets", "cookie", "\udcff", "\xe9"):
        refusal = GUARD.refusal(RequestInfo("GET", "node7", token=wrong))
        assert refusal is not None and refusal.status == 401


def test_the_token_and_the_cookie_are_not_interchangeable() -> None:
    assert GUARD.refusal(RequestInfo("GET", "node7", token="secret")) is None
    assert GUARD.refusal(RequestInfo("GET", "node7", cookie="cookie")) is None
    assert GUARD.refusal(RequestInfo("GET", "node7", cookie="secret")) is not None
    assert GUARD.refusal(RequestInfo("GET", "node7", token="cookie")) is not None


def test_an_empty_session_matches_no_cookie() -> None:
    assert Guard("secret", "").refusal(RequestInfo("GET", "localhost", cookie="")) is not None


@pytest.mark.parametrize(
    ("request_info", "status"),
    [
        (RequestInfo("POST", "localhost:1", content_type="text/plain"), 415),
        (RequestInfo("POST", "localhost:1", content_type=None), 415),
        (RequestInfo("POST", "localhost:1", content_type="application/x-www-form-urlencoded"), 415),
        (RequestInfo("POST", "localhost:1", "http://evil.example", content_type=JSON), 403),
        (RequestInfo("POST", "localhost:1", "http://localhost:2", content_type=JSON), 403),
        (RequestInfo("POST", "localhost:1", "null", content_type=JSON), 403),
        (RequestInfo("POST", "localhost:1", None, "cross-site", JSON), 403),
        (RequestInfo("POST", "localhost:1", None, "same-site", JSON), 403),
        (RequestInfo("POST", "localhost:1", None, "none", JSON), 403),
        (RequestInfo("PUT", "localhost:1", content_type=JSON), 405),
        (RequestInfo("DELETE", "localhost:1", content_type=JSON), 405),
        (RequestInfo("OPTIONS", "localhost:1"), 405),
    ],
)
def test_commands_must_be_json_from_this_origin(request_info: RequestInfo, status: int) -> None:
    refusal = refusal_with_cookie(request_info)
    assert refusal is not None and refusal.status == status


def test_pages_of_the_board_and_scripts_may_send_commands() -> None:
    assert refusal_with_cookie(RequestInfo("POST", "localhost:1", "http://localhost:1", "same-origin", JSON)) is None
    assert (
        refusal_with_cookie(
            RequestInfo("POST", "localhost:1", "https://LOCALHOST:1", None, "Application/JSON; charset=utf-8")
        )
        is None
    )
    assert refusal_with_cookie(RequestInfo("POST", "127.0.0.1:1", content_type=JSON)) is None


@given(st.text(), st.text(), st.text())
def test_only_the_secrets_give_access(host: str, token: str, cookie: str) -> None:
    refusal = GUARD.refusal(RequestInfo("GET", host, token=token, cookie=cookie))
    assert refusal is not None or token == "secret" or cookie == "cookie"


def test_only_loopback_addresses_are_private() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.1.2.3", "localhost", "::1"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.7", "127.0.0.1.evil.example", "127.evil"]))
