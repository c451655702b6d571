"""Mutual authentication between hosts by one certificate that all processes derive from the shared secret.

    secret --HKDF-SHA256--> Ed25519 key --> self-signed certificate, the same bytes in every process

Both sides of a TLS 1.3 connection present this certificate, accept no other, and prove that they hold its key. Ed25519
signs deterministically, so each process makes the certificate itself. It names no host and does not expire.

The listener is the client of TLS and the dialer its server, because a TLS server is the first to present its
certificate: a stranger who connects to a listener receives nothing that depends on the secret.

Loads `ssl` and `cryptography`: only import this module to make a link between hosts.
"""

# ruff: noqa: E402  # cryptography is looked for first
import datetime
import secrets
import ssl
import tempfile
from typing import Literal

from ...base.extras import check_installed

check_installed("links between hosts need", "cryptography", extra="rpc")
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from ..shared_secret import check_secret

Side = Literal["listener", "dialer"]

_INFO = b"fanwise: key of the certificate of the cluster, 2"
_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fanwise cluster")])
_FIRST_DAY = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_NO_EXPIRATION = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)  # RFC 5280, 4.1.2.5


def is_server(side: Side) -> bool:
    """Return True if this side is the TLS server. See the module."""
    return side == "dialer"


class Identity:
    """The TLS contexts of one secret. Thread-safe.

    Args:
        secret: the secret of the cluster. Raises `SecretError` if `fanwise secret` did not make it.
    """

    def __init__(self, secret: str) -> None:
        seed = HKDF(hashes.SHA256(), length=32, salt=None, info=_INFO).derive(check_secret(secret).encode())
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self._certificate = _self_signed(self._key)
        self._contexts: dict[Side, ssl.SSLContext] = {}

    def context(self, side: Side) -> ssl.SSLContext:
        """Return the context of one side: TLS 1.3 only, with the certificate presented, required and checked."""
        if side not in self._contexts:
            self._contexts[side] = self._new_context(side)
        return self._contexts[side]

    def _new_context(self, side: Side) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server(side) else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.options |= ssl.OP_NO_TICKET
        if is_server(side):
            context.num_tickets = 0  # no session is resumed
        context.load_verify_locations(cadata=self._certificate.public_bytes(Encoding.DER))
        # `ssl` reads keys from files only, so the file is encrypted, with a password that is discarded.
        password = secrets.token_hex(32)
        encryption = BestAvailableEncryption(password.encode())
        key = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        with tempfile.NamedTemporaryFile(prefix="fanwise-") as file:
            file.write(self._certificate.public_bytes(Encoding.PEM) + key)
            file.flush()
            context.load_cert_chain(file.name, password=password)
        return context


def _self_signed(key: Ed25519PrivateKey) -> x509.Certificate:
    builder = x509.CertificateBuilder(issuer_name=_NAME, subject_name=_NAME, public_key=key.public_key())
    builder = builder.serial_number(1).not_valid_before(_FIRST_DAY).not_valid_after(_NO_EXPIRATION)
    return builder.sign(key, None)
