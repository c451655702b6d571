"""Certificates: the same secret gives the same authority, and what it signs is short-lived and names nobody."""

import datetime
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fanwise.base.errors import SecretError
from fanwise.links.security import certificates
from fanwise.links.security.certificates import LIFE_S, SKEW_S, Identity
from fanwise.links.shared_secret import new_secret

SECRET = "fanwise1-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9jDc0p"  # 32 bytes from 0 on, and their sum
NOW_S = 1_800_000_000.0


def certificate_at(now_s: float) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    return certificates._certificate(key, certificates._authority_key(SECRET.encode()), now_s)


def test_the_authority_of_a_secret_never_changes() -> None:
    number = certificates._authority_key(SECRET.encode()).private_numbers().private_value
    assert f"{number:064x}" == "8421ad23252d5fd23e6fc36a801558e67bd9974d222ac120185f0fb2b23946fa"


def test_each_secret_has_an_authority_of_its_own() -> None:
    keys = {certificates._authority_key(f"{SECRET}{i}".encode()).private_numbers().private_value for i in range(100)}
    assert len(keys) == 100


def test_a_certificate_is_valid_for_a_day_by_any_clock_that_is_off_by_one() -> None:
    certificate = certificate_at(NOW_S)
    assert certificate.not_valid_before_utc == datetime.datetime.fromtimestamp(NOW_S - SKEW_S, datetime.UTC)
    assert certificate.not_valid_after_utc == datetime.datetime.fromtimestamp(NOW_S + LIFE_S + SKEW_S, datetime.UTC)
    assert SKEW_S == 86400.0


def test_a_certificate_names_no_host_and_can_sign_no_other() -> None:
    certificate = certificate_at(NOW_S)
    assert certificate.subject.rfc4514_string() == "CN=fanwise process"
    assert socket.gethostname() not in certificate.subject.rfc4514_string()
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is False
    with pytest.raises(x509.ExtensionNotFound):
        certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def test_a_context_takes_tls_1_3_and_certificates_of_the_cluster_only() -> None:
    for side in ("listener", "dialler"):
        context = Identity(SECRET).context(side)
        assert context.minimum_version == context.maximum_version == ssl.TLSVersion.TLSv1_3
        assert context.verify_mode == ssl.CERT_REQUIRED
        (authority,) = context.get_ca_certs()
        assert authority["subject"] == ((("commonName", "fanwise cluster"),),)


def test_a_context_is_kept_for_half_a_day_and_then_made_anew() -> None:
    now_s = NOW_S
    identity = Identity(SECRET, wall_s=lambda: now_s)
    first, other_side = identity.context("dialler"), identity.context("listener")
    now_s += LIFE_S / 2 - 1
    assert identity.context("dialler") is first and first is not other_side
    now_s += 1
    second = identity.context("dialler")
    assert second is not first
    now_s -= LIFE_S
    assert identity.context("dialler") is not second, "the clock was put back: the certificate may not be valid yet"


def test_where_there_are_no_files_in_memory_an_encrypted_one_is_used_and_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written: list[bytes] = []
    monkeypatch.delattr("os.memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "write_bytes", recording(written))
    Identity(SECRET).context("listener")
    assert len(written) == 1 and b"BEGIN ENCRYPTED PRIVATE KEY" in written[0] and b"BEGIN PRIVATE KEY" not in written[0]
    assert list(tmp_path.iterdir()) == []


def recording(written: list[bytes]) -> object:
    def write_bytes(path: Path, data: bytes) -> int:
        written.append(data)
        with open(path, "wb") as file:
            return file.write(data)

    return write_bytes


def test_a_weak_secret_makes_no_identity() -> None:
    with pytest.raises(SecretError, match="the secret was not drawn by"):
        Identity("weak")
    assert Identity(f"  {new_secret()}\n")
