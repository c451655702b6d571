"""The certificate of a secret: the same in every process, and the only one that a context accepts."""

import hashlib
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fanwise.base.errors import SecretError
from fanwise.links.security.certificates import Identity, Side
from fanwise.links.shared_secret import new_secret

SECRET = "fanwise1-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9jDc0p"  # 32 bytes from 0 on, and their sum
CERTIFICATE_SHA256 = "dd6b9993331cb00300bb638985a5f8080f1be07041491c7284456a982e361f37"
SIDES: tuple[Side, ...] = ("listener", "dialer")


def certificate_of(secret: str) -> bytes:
    return Identity(secret)._certificate.public_bytes(Encoding.DER)


def test_the_certificate_of_a_secret_never_changes() -> None:
    assert hashlib.sha256(certificate_of(SECRET)).hexdigest() == CERTIFICATE_SHA256


def test_each_secret_has_its_own_key() -> None:
    keys = {Identity(new_secret())._key.private_bytes_raw() for _ in range(20)}
    assert len(keys) == 20


def test_the_certificate_names_no_host() -> None:
    certificate = x509.load_der_x509_certificate(certificate_of(SECRET))
    assert certificate.subject == certificate.issuer
    assert certificate.subject.rfc4514_string() == "CN=fanwise cluster" and not list(certificate.extensions)


@pytest.mark.parametrize("side", SIDES)
def test_a_context_accepts_tls_1_3_and_the_certificate_of_the_secret_only(side: Side) -> None:
    context = Identity(SECRET).context(side)
    assert context.minimum_version == context.maximum_version == ssl.TLSVersion.TLSv1_3
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.cert_store_stats()["x509"] == 1


def test_a_context_is_made_once_for_each_side() -> None:
    identity = Identity(SECRET)
    assert identity.context("dialer") is identity.context("dialer") is not identity.context("listener")


def test_the_file_of_the_key_is_encrypted_and_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[bytes] = []

    def load(context: ssl.SSLContext, certfile: str, *, password: str) -> None:
        written.append(Path(certfile).read_bytes())
        super(ssl.SSLContext, context).load_cert_chain(certfile, password=password)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load)
    Identity(SECRET).context("listener")
    (data,) = written
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in data and b"BEGIN PRIVATE KEY" not in data
    assert list(tmp_path.iterdir()) == []


def test_a_weak_secret_makes_no_identity() -> None:
    with pytest.raises(SecretError, match="the secret was not created by"):
        Identity("weak")
    assert Identity(f"  {new_secret()}\n")
