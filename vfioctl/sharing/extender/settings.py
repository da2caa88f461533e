"""The settings of the extender, as its options have them. May not open a file or a socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from vfioctl.core.frozen import value_class
from vfioctl.errors import BadSpec
from vfioctl.serving.address import is_address
from vfioctl.sharing.extender.names import Unit

LISTEN = "127.0.0.1:9822"
"""The address by default, of this machine only: whoever can connect can bind pods. The two ports before it are those of
the device plugin and of `share serve`, which may run beside it."""
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has the token of its service account, and the certificates of the API server."""


@value_class
class ApiServer:
    """The API server of a cluster."""

    url: str
    """https://HOST:PORT or http://HOST:PORT."""
    token: Path | None = None
    authority: Path | None = None
    """Certificates that the API server's is checked with; None for those of the system."""
    certificate: Path | None = None
    """The client's own, and its key; None for none."""


@value_class
class ExtenderSettings:
    """Where the extender listens, and which API server it asks."""

    listen: str
    """ADDRESS:PORT."""
    unit: Unit
    api_server: ApiServer
    certificate: Path | None
    """The extender's certificate; None for HTTP without TLS."""
    key: Path | None
    clients: Path | None
    """Certificates that those of clients are checked with; None for no check."""


def checked(
    listen: str = LISTEN,
    unit: Unit = Unit.GIB,
    api_server: str | None = None,
    files: Mapping[str, Path | None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ExtenderSettings:
    """Return settings. `files`: token, authority, certificate, key, clients. `environment`: of a pod, which has
    the address of the API server. Raises BadSpec."""
    known = _existing(files, ("certificate", "key", "clients"))
    if not is_address(listen):
        raise BadSpec(f"--listen {listen[:60]!r} is no address with a port", hint="write it as 127.0.0.1:9822")
    if (known["certificate"] is None) != (known["key"] is None) or (known["clients"] and not known["certificate"]):
        raise BadSpec("TLS needs a certificate and its key", hint="give --tls-cert-file and --tls-key-file")
    return ExtenderSettings(listen, unit, api_server_of(api_server, files, environment), **known)


def api_server_of(
    url: str | None, files: Mapping[str, Path | None] | None, environment: Mapping[str, str] | None
) -> ApiServer:
    """Return the API server. `url`: None for that of the pod's cluster. `files`: token, authority, client certificate.
    Raises BadSpec."""
    known = _existing(files, ("token", "authority", "client certificate"))
    if url is None:
        url = _of_cluster(environment or {})
        known["token"] = known["token"] or _if_there(_ACCOUNT / "token")
        known["authority"] = known["authority"] or _if_there(_ACCOUNT / "ca.crt")
    _check_url(url)
    if known["client certificate"] and not url.startswith("https:"):
        raise BadSpec("--client-cert-file needs an API server with https")
    return ApiServer(url, known["token"], known["authority"], known["client certificate"])


def _existing(files: Mapping[str, Path | None] | None, names: Sequence[str]) -> dict[str, Path | None]:
    """Return these files. Raises BadSpec for one that is missing."""
    known = {name: (files or {}).get(name) for name in names}
    for name, path in known.items():
        if path is not None and not path.is_file():
            raise BadSpec(f"{path}: there is no such file ({name})")
    return known


def _of_cluster(environment: Mapping[str, str]) -> str:
    host, port = (environment.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    if not host:
        raise BadSpec(
            "this is no pod of a cluster: KUBERNETES_SERVICE_HOST is not set",
            hint="name the API server: --api-server http://127.0.0.1:8001, which kubectl proxy serves",
        )
    return f"https://{f'[{host}]' if ':' in host else host}:{port or 443}"


def _if_there(path: Path) -> Path | None:
    return path if path.is_file() else None


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 443)
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or parts.username or not url.isascii() or " " in url:
        raise BadSpec(f"--api-server {url[:60]!r} is no URL of one", hint="write it as https://HOST:PORT")
