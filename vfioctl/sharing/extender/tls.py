"""The certificates that the extender serves HTTPS with, as their files are now. May not open a socket."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from vfioctl.errors import HostError

_log = logging.getLogger("vfioctl.extender")


class Certificates:
    """A certificate with its key, and those that clients are checked with; None for no check. cert-manager and others
    replace the files long before a certificate expires."""

    def __init__(self, certificate: Path, key: Path | None, clients: Path | None) -> None:
        """Raises HostError for files that cannot be used."""
        self._certificate, self._key, self._clients = certificate, key, clients
        self._stamp = self._stamped()
        self._context = self._read()

    def context(self) -> ssl.SSLContext:
        """Return what a connection is served with. Files that have changed are read; if they cannot be used, the
        certificates before them are kept, and that is logged. Not safe for threads."""
        if (stamp := self._stamped()) != self._stamp:
            self._stamp = stamp
            try:
                self._context = self._read()
            except HostError as error:  # perhaps only one of the files is replaced so far
                _log.warning("%s: the one before it is served", error.message)
            else:
                _log.info("the certificate %s has changed", self._certificate)
        return self._context

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

    def _stamped(self) -> tuple[tuple[int, ...], ...]:
        """What differs once a file is replaced or written; nothing of one that is missing."""
        return tuple(_stamp(path) for path in (self._certificate, self._key, self._clients) if path)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
