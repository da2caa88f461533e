"""`vfioctl share extender`: a scheduler extender for shares of GPUs. May not add behaviour to the api."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import group_app
from vfioctl.sharing.extender.names import Unit

app = group_app("extender")


def add_to(group: typer.Typer) -> None:
    """Add the group to `vfioctl share`."""
    group.add_typer(app, name="extender")


def _file(name: str, meaning: str) -> Any:
    return typer.Option(name, metavar="FILE", help=meaning, show_default=False)


@app.group_with_examples("""
  vfioctl share extender serve --help
  vfioctl share extender report --dry-run""")
def extender() -> None:
    """Place pods that ask for memory of shared GPUs, as an extender of kube-scheduler.

    Containers ask for aliyun.com/gpu-mem, as with gpushare."""


@app.with_examples("""
  vfioctl share extender serve
  vfioctl share extender serve --api-server http://127.0.0.1:8001 --unit MiB""")
def serve(  # noqa: PLR0913 - one for each option
    *,
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS:PORT", help="Where to listen. Whoever can connect there can bind pods.")
    ] = "127.0.0.1:9822",
    unit: Annotated[
        Unit, typer.Option(help="The unit in which nodes and containers count aliyun.com/gpu-mem.")
    ] = Unit.GIB,
    api_server: Annotated[
        str | None, typer.Option(metavar="URL", help="The API server, in place of that of the pod's cluster.")
    ] = None,
    token_file: Annotated[
        Path | None, _file("--token-file", "The token for the API server; sent over https only.")
    ] = None,
    ca_file: Annotated[Path | None, _file("--ca-file", "Certificates to check that of the API server with.")] = None,
    tls_cert_file: Annotated[Path | None, _file("--tls-cert-file", "Certificate to serve HTTPS with.")] = None,
    tls_key_file: Annotated[Path | None, _file("--tls-key-file", "The key of that certificate.")] = None,
    client_ca_file: Annotated[
        Path | None, _file("--client-ca-file", "Certificates to check those of clients with; others are refused.")
    ] = None,
) -> None:
    """Answer kube-scheduler until a signal ends it: filter, prioritize, and bind with the GPU of each container.

    In a pod, the API server and the token are found without options. /healthz is 200 once pods and nodes are known.
    Gpushare's annotations are written, too, so that its tools show what pods have."""
    from vfioctl.console.output import say, settle
    from vfioctl.serving.running import ended_by_signals
    from vfioctl.sharing.api import serve_extender
    from vfioctl.sharing.extender.settings import checked

    files = {
        "token": token_file,
        "authority": ca_file,
        "certificate": tls_cert_file,
        "key": tls_key_file,
        "clients": client_ca_file,
    }
    settings = checked(listen, unit, api_server, files, os.environ)
    settle()
    with ended_by_signals() as is_stopping, _logging():
        serve_extender(settings, stop=is_stopping, ready=lambda what: say(f"serving on {what}"))


@app.with_examples("""
  vfioctl share extender report --dry-run
  vfioctl share extender report --node gpu1 --api-server http://127.0.0.1:8001""")
def report(  # noqa: PLR0913 - one for each option
    ctx: typer.Context,
    *,
    node: Annotated[
        str | None,
        typer.Option(envvar="VFIOCTL_NODE_NAME", metavar="NAME", help="The node, if it is not called as the host."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Send the report once.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the report, and send nothing.")] = False,
    api_server: Annotated[
        str | None, typer.Option(metavar="URL", help="The API server, in place of that of the pod's cluster.")
    ] = None,
    token_file: Annotated[
        Path | None, _file("--token-file", "The token for the API server; sent over https only.")
    ] = None,
    ca_file: Annotated[Path | None, _file("--ca-file", "Certificates to check that of the API server with.")] = None,
    client_cert_file: Annotated[
        Path | None, _file("--client-cert-file", "A certificate and its key for the API server, as a kubelet has.")
    ] = None,
) -> None:
    """Tell the extender which GPUs this node has and which of them its pods have, until a signal ends it.

    It is the annotation vfioctl.io/gpus of the node, which is renewed when the ledger changes, and each minute. What
    pods have is what the device plugin gave them; what others have claimed is not there for pods. With --once and
    --dry-run it is printed, as JSON."""
    from vfioctl.console.output import emit, say, settle
    from vfioctl.serving.running import ended_by_signals
    from vfioctl.sharing.api import node_report
    from vfioctl.sharing.extender.settings import api_server_of

    reporting = node_report(opened(ctx), node or socket.gethostname().lower())
    files = {"token": token_file, "authority": ca_file, "client certificate": client_cert_file}
    if once or dry_run:
        text = reporting.text()
        if not dry_run:
            reporting.send(api_server_of(api_server, files, os.environ), text)
        settle()
        emit(text)
        return
    server = api_server_of(api_server, files, os.environ)
    settle()
    with ended_by_signals() as is_stopping, _logging():
        reporting.run(server, is_stopping, ready=lambda node: say(f"annotates node {node}"))


@contextmanager
def _logging() -> Iterator[None]:
    """Log to stderr while the block runs, unless an option has asked for a log already."""
    from vfioctl.console.logs import log_to_stderr

    stop = log_to_stderr("info") if not logging.getLogger("vfioctl").handlers else lambda: None
    try:
        yield
    finally:
        stop()
