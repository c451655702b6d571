"""Who a process is towards other hosts: a certificate of its own, signed by the authority that the secret gives.

    shared secret --HKDF-SHA256--> key of the cluster's authority, the same in every process
                                        | signs
                                   certificate of this process: new key, good for two days

Both sides of a link show such a certificate and take no other: that is the authentication between hosts. The listener
is the client of TLS and the dialler its server, because the server is the one that shows its certificate first: who
listens shows nothing that comes from the secret, before the other side has proved that it holds it. Certificates name
nobody: the host is not part of them, and a process is as good as another. Each is valid a day before it was made
and is made anew twice a day, so that clocks may differ by a day.

Private keys are on no disk: OpenSSL wants a file, so it gets one in memory or, where there is none of those, one that
is encrypted under a password that nobody keeps, in a folder of this user's that is removed at once.
Loads `ssl` and `cryptography`: nobody imports this before there is a link between hosts.
"""

# ruff: noqa: E402  # cryptography is looked for first
import contextlib
import datetime
import os
import secrets
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from ...base.extras import check_installed

check_installed("links between hosts need", "cryptography", extra="rpc")
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..shared_secret import check_secret

Side = Literal["listener", "dialler"]

_DAY_S = 86400.0
SKEW_S = _DAY_S  # by how much clocks may differ
LIFE_S = _DAY_S
_RENEWED_AFTER_S = LIFE_S / 2

_INFO = b"fanwise: key of the cluster's certificate authority, 1"
_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of its base point; SEC 2, 2.4.2
# Made anew by each process from the key, so it must not matter when.
_FIRST_DAY = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_LAST_DAY = datetime.datetime(2999, 12, 31, tzinfo=datetime.UTC)


def is_server(side: Side) -> bool:
    """Whether this side is the server of TLS, which shows its certificate first. See the module."""
    return side == "dialler"


class Identity:
    """What this process proves itself with towards other hosts. One for each secret; any thread may use it.

    Args:
        secret: the cluster's. Raises `SecretError` when it is too weak.
        wall_s: the date, in seconds since 1970; when the certificate is made and renewed.
    """

    def __init__(self, secret: str, *, wall_s: Callable[[], float] = time.time) -> None:
        self._key = _authority_key(check_secret(secret).encode())
        self._authority = _authority(self._key)
        self._wall_s = wall_s
        self._contexts: dict[Side, tuple[float, ssl.SSLContext]] = {}

    def context(self, side: Side) -> ssl.SSLContext:
        """What to wrap a connection in: TLS 1.3 only, own certificate shown, the other's required and checked."""
        now_s = self._wall_s()
        made_s, context = self._contexts.get(side, (0.0, None))
        if context is None or abs(now_s - made_s) >= _RENEWED_AFTER_S:
            context = self._new_context(side, now_s)
            self._contexts[side] = (now_s, context)
        return context

    def _new_context(self, side: Side, now_s: float) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server(side) else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.options |= ssl.OP_NO_TICKET
        if is_server(side):
            context.num_tickets = 0  # each link proves itself anew
        context.load_verify_locations(cadata=self._authority.public_bytes(Encoding.DER))
        self._show_certificate(context, now_s)
        return context

    def _show_certificate(self, context: ssl.SSLContext, now_s: float) -> None:
        key = ec.generate_private_key(_CURVE)
        certificate = _certificate(key.public_key(), self._key, now_s)
        password = secrets.token_hex(32)
        locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
        with _as_file(certificate.public_bytes(Encoding.PEM) + locked) as path:
            context.load_cert_chain(path, password=password)


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path under which `data` can be read for a moment."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        with open(os.memfd_create("fanwise"), "wb", buffering=0) as file:
            file.write(data)
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.TemporaryDirectory(prefix="fanwise-") as folder:
            path = Path(folder) / "certificate"
            path.write_bytes(data)
            yield str(path)


def _authority_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    # 128 bits more than the order has, so that the remainder prefers no number (FIPS 186-5, A.2.1).
    drawn = HKDF(hashes.SHA256(), length=48, salt=None, info=_INFO).derive(secret)
    return ec.derive_private_key(int.from_bytes(drawn, "big") % (_ORDER - 1) + 1, _CURVE)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """What others' certificates are checked against. It is never sent, so each process may have a copy of its own."""
    return (
        x509.CertificateBuilder(issuer_name=_name("fanwise cluster"), subject_name=_name("fanwise cluster"))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_FIRST_DAY)
        .not_valid_after(_LAST_DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _certificate(
    public: ec.EllipticCurvePublicKey, authority: ec.EllipticCurvePrivateKey, now_s: float
) -> x509.Certificate:
    """For a process: both to dial and to listen with, and to sign nothing."""
    roles = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    return (
        x509.CertificateBuilder(issuer_name=_name("fanwise cluster"), subject_name=_name("fanwise process"))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.fromtimestamp(now_s - SKEW_S, datetime.UTC))
        .not_valid_after(datetime.datetime.fromtimestamp(now_s + LIFE_S + SKEW_S, datetime.UTC))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(roles), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
