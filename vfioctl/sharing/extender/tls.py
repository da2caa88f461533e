"""The TLS contexts of the extender, from their files as they are now. May not open a socket."""

from __future__ import annotations

import logging
import ssl
import threading
from abc import ABC, abstractmethod
from pathlib import Path

from vfioctl.errors import HostError
from vfioctl.kernel.feeds import stamp

_log = logging.getLogger("vfioctl.extender")


class RenewedContext(ABC):
    """A context that is made again when one of its files is replaced or written: cert-manager, the kubelet and others
    do that long before a certificate expires."""

    def __init__(self, *files: Path | None) -> None:
        """Raises HostError for files that cannot be used."""
        self._files = [file for file in files if file]
        self._lock = threading.Lock()
        self._stamp = stamp(*self._files)
        self._context = self._read()

    def context(self) -> ssl.SSLContext:
        """Return what the next connection is made with. If new files cannot be used, those before them are kept, and
        that is logged."""
        with self._lock:
            if (found := stamp(*self._files)) != self._stamp:
                self._stamp = found
                try:
                    self._context = self._read()
                except HostError as error:  # perhaps only one of the files is replaced so far
                    _log.warning("%s: the one before it stays in use", error.message)
                else:
                    _log.info("%s: a file has changed", ", ".join(map(str, self._files)))
            return self._context

    @abstractmethod
    def _read(self) -> ssl.SSLContext:
        """Make a context. Raises HostError."""


class ServingContext(RenewedContext):
    """What the extender serves with: a certificate with its key, and those that clients are checked with; None for no
    check."""

    def __init__(self, certificate: Path, key: Path | None, clients: Path | None) -> None:
        self._certificate, self._key, self._clients = certificate, key, clients
        super().__init__(certificate, key, clients)

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        path = self._certificate
        try:
            context.load_cert_chain(self._certificate, self._key)
            if self._clients:
                path = self._clients
                context.load_verify_locations(self._clients)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:  # SSLError is one
            raise HostError(f"cannot use the certificate {path}: {error.strerror or error}") from None
        return context


class AskingContext(RenewedContext):
    """What the API server is asked with: the certificates that it is checked with, None for the host's; and one of the
    extender's own, with its key."""

    def __init__(self, authority: Path | None, certificate: Path | None) -> None:
        self._authority, self._certificate = authority, certificate
        super().__init__(authority, certificate)

    def _read(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._authority)
        except OSError as error:
            raise HostError(f"cannot read the certificates in {self._authority}: {error.strerror or error}") from None
        try:
            if self._certificate:
                context.load_cert_chain(self._certificate)
        except OSError as error:
            raise HostError(f"cannot use the certificate {self._certificate}: {error.strerror or error}") from None
        return context
