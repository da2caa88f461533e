"""`vfioctl oci`: gives a container the devices of a claim. May not add behaviour to the api."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from vfioctl.claims.api import suggest_claims
from vfioctl.claims.model.cdi import Node
from vfioctl.console.choice import opened
from vfioctl.console.lazy import group_app
from vfioctl.console.options import AsJson, DryRun, completion
from vfioctl.console.output import emit, emit_document, emit_file, say
from vfioctl.containers.api import ContainersApi
from vfioctl.errors import BadSpec

app = group_app("oci")


@app.group_with_examples("""
  vfioctl oci inject --help""")
def oci() -> None:
    """Add the devices of a claim to containers of runc, crun and Kata.

    Container runtimes with CDI support do not need this; use vfioctl cdi generate."""


@app.with_examples("""
  vfioctl oci inject /run/bundle --claim CLAIM --dry-run --simulate hgx8
  vfioctl oci inject /run/bundle --claim CLAIM --node cdev --simulate hgx8""")
def inject(
    ctx: typer.Context,
    bundle: Annotated[
        Path | None,
        typer.Argument(
            metavar="BUNDLE", help="The directory with config.json. Default: read from stdin.", show_default=False
        ),
    ] = None,
    *,
    claim: Annotated[
        str,
        typer.Option(
            metavar="CLAIM",
            help="The claim whose devices the container gets.",
            autocompletion=completion(suggest_claims),
        ),
    ],
    node: Annotated[
        Node, typer.Option(help="group: /dev/vfio/N and /dev/vfio/vfio; cdev: /dev/vfio/devices/vfioN of IOMMUFD.")
    ] = Node.GROUP,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Edit the config.json of an OCI bundle, so that its container gets the devices of a claim.

    Adds the nodes, the rules that allow them, and an annotation with the claim; a second run changes nothing. Run it
    before the runtime creates the container: runc and crun read config.json before they run any hook.

    Without BUNDLE, stdin may contain a container's state, as hooks get it, or a config.json, which is written to
    stdout after the edit, as podman's precreate hooks do."""
    api = ContainersApi(opened(ctx)).oci
    if bundle is None:
        from vfioctl.containers.oci.bundle import bundle_in

        text = _stdin()
        bundle = bundle_in(text)
        if bundle is None:
            emit_file(api.filter(text, claim, node=node).decode())
            return
    done = api.inject(bundle, claim, node=node, dry_run=dry_run)
    if as_json:
        emit_document({**asdict(done), "written": bool(done.changes) and not dry_run})
        return
    for change in done.changes:
        emit(change)
    if not done.changes:
        emit(f"{bundle}/config.json has the devices of claim {done.claim} already.")
    elif dry_run:
        say("Nothing was changed: this is a dry run.")


def _stdin() -> bytes:
    from vfioctl.containers.oci.bundle import MOST_STATE
    from vfioctl.kernel.untrusted_files import read_stream

    if sys.stdin is None or sys.stdin.isatty():
        raise BadSpec("name the bundle: the directory with config.json")
    try:
        return read_stream(sys.stdin.buffer, MOST_STATE)
    except OSError as error:
        raise BadSpec(f"stdin cannot be read: {error.strerror}") from None
