"""`vfioctl cdi`: writes, lists and checks CDI files. May not add behaviour to the api."""

import json
from pathlib import Path
from typing import Annotated

import typer

from vfioctl.claims.api import suggest_claims
from vfioctl.claims.model.cdi import KIND, SEEN, Node
from vfioctl.console.changes import carry_out
from vfioctl.console.choice import opened
from vfioctl.console.lazy import group_app
from vfioctl.console.options import AsJson, DryRun, completion
from vfioctl.console.output import draw, emit, emit_document, emit_json_text, say, width
from vfioctl.console.words import counted
from vfioctl.containers.api import ContainersApi
from vfioctl.errors import BadDocument, BadSpec

app = group_app("cdi")


@app.group_with_examples("""
  vfioctl cdi generate --all --dry-run --simulate hgx8
  vfioctl cdi list --simulate hgx8""")
def cdi() -> None:
    """Write, list and check CDI files, which name devices for container runtimes.

    podman, containerd, CRI-O and Kata read these files: a container gets the devices that it asks for by name."""


@app.with_examples("""
  vfioctl cdi generate --all --dry-run --simulate hgx8
  vfioctl cdi generate --all --node cdev --kind example.com/gpu --dry-run --simulate hgx8""")
def generate(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    *,
    claim: Annotated[
        str | None,
        typer.Option(
            metavar="CLAIM",
            help="Change only the devices of this claim in the file; if the claim has ended, remove them.",
            autocompletion=completion(suggest_claims),
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Include all devices on VFIO, claimed or not.")] = False,
    output: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write to this directory instead of /var/run/cdi, without the journal."),
    ] = None,
    kind: Annotated[str, typer.Option(metavar="VENDOR/CLASS", help="The kind of the devices.")] = KIND,
    node: Annotated[
        Node, typer.Option(help="group: /dev/vfio/N and /dev/vfio/vfio; cdev: /dev/vfio/devices/vfioN of IOMMUFD.")
    ] = Node.GROUP,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write the CDI file with the devices of all claims.

    A device is named after its address, such as vfioctl/vfio=0000-41-00.0, so that its name is the same after a reboot.
    Its node may change: run this at each boot. The file is removed when no device is left. Files of other
    programs are never changed."""
    if claim and every:
        raise BadSpec("--claim and --all exclude each other", hint="give one of them")
    if output == "":
        raise BadSpec("--output is empty", hint="name a directory, or leave out --output")
    session = opened(ctx)
    from vfioctl.containers.cdi.intent import CdiIntent
    from vfioctl.vgpu.model.intents import asked

    intent = asked(lambda: CdiIntent(kind=kind, node=node, claim=claim, everything=every))
    api = ContainersApi(session).cdi
    if output is None or output in SEEN:
        plan = api.plan(intent)
        carry_out(session, plan, dry_run=dry_run, yes=True, as_json=as_json)
        if dry_run and not as_json:
            for change in plan.changes:
                emit_json_text(change.after)
        return
    done = api.export(intent, Path(output), dry_run=dry_run)
    if as_json:
        emit_document({"path": done.path, "written": not dry_run, "document": json.loads(done.text or "null")})
        return
    for note in done.notes:
        say(f"vfioctl: {note}")
    if dry_run:
        emit_json_text(done.text or "null")
    else:
        written = counted(len(done.devices), "device") if done.text else "no device, so no file"
        emit(f"{done.path}: {written}")


@app.with_examples(
    """
  vfioctl cdi list --simulate hgx8
  vfioctl cdi list --simulate hgx8 --json""",
    name="list",
)
def list_devices(ctx: typer.Context, *, as_json: AsJson = False) -> None:
    """List the devices that CDI files in /etc/cdi and /var/run/cdi define, and the problems of each file."""
    api = ContainersApi(opened(ctx)).cdi
    files, (claims, problem) = api.files(), api.holders()
    from vfioctl.containers.render import cdi_document, cdi_table

    if as_json:
        emit_document(cdi_document(files, claims, problem))
        return
    draw(cdi_table(files, claims, problem, width=width()))


@app.with_examples("""
  vfioctl cdi validate /var/run/cdi/vfioctl.json
  vfioctl cdi validate /etc/cdi/gpus.json --json""")
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="CDI files in JSON.")], *, as_json: AsJson = False
) -> None:
    """Check CDI files as strictly as the strictest container runtime.

    Unknown fields, duplicate names, wrong values, and a cdiVersion that is too low for the fields are problems. The
    exit code is 2 if a file has one."""
    from vfioctl.containers.cdi.files import check_file

    checked = [check_file(file) for file in files]
    wrong = [file for file in checked if file.problems]
    if as_json:
        emit_document({"files": checked})
        if wrong:
            raise typer.Exit(BadDocument.exit_code)
        return
    for file in checked:
        if not file.problems:
            emit(f"{file.path}: valid, cdiVersion {file.version}, {counted(file.devices, 'device')}")
        for problem in file.problems:
            emit(f"{file.path}: {problem}")
    if wrong:
        count = "1 file is" if len(wrong) == 1 else f"{len(wrong)} files are"
        raise BadDocument(f"{count} not valid", hint="container runtimes ignore such a file, or refuse to start")
