"""`vfioctl domain edit`, `diff` and `verify`. May not add behaviour to the api."""

from collections.abc import Sequence
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vfioctl.console.changes import carry_out
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, DryRun, Yes
from vfioctl.console.output import draw, emit_document, say
from vfioctl.domain.api import DomainApi
from vfioctl.domain.cli.domain import Connect, Name, Replace
from vfioctl.domain.cli.spec_options import spec_options
from vfioctl.errors import Drift, HostError, VerifyError, VfioctlError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vfioctl.core.change import Plan

_EDIT = """
  vfioctl domain edit web1 --device gpu1 --dry-run
  vfioctl domain edit web1
  vfioctl domain edit web1 --gpus 2 --cpus 16 --memory 64GiB --yes"""
_DIFF = """
  vfioctl domain diff web1
  vfioctl domain diff web1 --json"""
_VERIFY = """
  vfioctl domain verify ml1
  vfioctl domain verify ml1 --no-guest --json"""


def add_to(app: App) -> None:
    """Add the commands to `vfioctl domain`."""
    app.with_examples(_EDIT)(edit)
    app.with_examples(_DIFF)(diff)
    app.with_examples(_VERIFY)(verify)


@spec_options(edits=True)
def edit(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    name: Name,
    *,
    requested: dict[str, Any],
    replace: Replace = False,
    connect: Connect = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Add devices to a domain, and place its CPUs and memory near them; everything else stays unchanged.

    The domain keeps its host devices. It gets what domain build would give it for all of them:
    pinned vCPUs, memory of the devices' NUMA nodes, and PCI buses that show the guest where its devices are. Without
    --device, --gpus and --claim it is placed near the devices that it has; one without devices, on the node with the
    most free memory. Elements that vfioctl does not know stay unchanged. The definition is changed; a running domain
    uses it from its next start."""
    session = opened(ctx)
    api = DomainApi(session)
    built = api.edited(name, requested, connect=connect)
    plan = api.definitions.plan_define(built.xml, connect=connect, claim=built.spec.claim, replace=replace)
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json, details=partial(_changes, plan, api, connect))
    for choice in built.weaker:
        say(f"{choice.what}: {choice.weaker}")


def _changes(plan: "Plan", api: DomainApi, connect: str) -> "Sequence[RenderableType]":
    """What becomes of the definition, or of the live document if there is none: the plan has both documents whole."""
    from vfioctl.domain.document.reader import read_domain
    from vfioctl.domain.document.summary import Changed, changed
    from vfioctl.domain.document.xml import parse
    from vfioctl.domain.model.definition import DEFINITION
    from vfioctl.domain.render.domains import changes_page

    facts: list[Changed] = []
    for change in plan.changes_of(DEFINITION):
        before = change.before or api.domains.find(read_domain(change.after).name, connect).domain.live
        facts += changed(parse(before), parse(change.after))
    return [changes_page(facts)] if facts else []


def diff(ctx: typer.Context, name: Name, *, connect: Connect = "", as_json: AsJson = False) -> None:
    """Compare a domain with what vfioctl would build for its devices now.

    Shows where its CPUs, memory and PCI buses differ from what domain build would choose for the same devices, vCPUs
    and memory: pins that are missing or far from a GPU, memory of another node, a device that is not on the bus of its
    node. For a running domain, its live document is compared; its own CPUs, hugepages and claim count as free.
    Exits with 4 if something differs; also if what it needs is taken, so that it could not be built now. --json
    tells these apart: it prints the comparison, or an error."""
    comparison = DomainApi(opened(ctx)).compared(name, connect=connect)
    if as_json:
        emit_document(comparison)
        if comparison.differences:
            raise typer.Exit(Drift.exit_code)
        return
    from vfioctl.domain.render.domains import comparison_page

    draw(comparison_page(comparison))
    if comparison.differences:
        number = f"{len(comparison.differences)} value{'s' if comparison.differences[1:] else ''}"
        where = f" --connect {quote(connect)}" if connect else ""
        next_command = f"vfioctl domain edit {quote(comparison.name)} --dry-run{where}"
        raise Drift(f"{comparison.name} is not what would be built, in {number}", next_command=next_command)


def verify(
    ctx: typer.Context,
    name: Name,
    *,
    no_guest: Annotated[bool, typer.Option("--no-guest", help="Do not ask the guest agent.")] = False,
    connect: Connect = "",
    as_json: AsJson = False,
) -> None:
    """Compare a running domain with its document: CPUs, memory, devices, and what its guest sees.

    Reads QEMU's process: the CPUs of each vCPU, the emulator and each I/O thread; the NUMA nodes and page sizes of the
    memory; the devices on the command line. Compares the live document with the definition that the next start uses.
    Asks the guest agent, if there is one, for each GPU's NUMA node and link. Exits with 6 if something differs, and
    with 3 if the domain does not run or neither its CPUs nor its memory can be read."""
    result = DomainApi(opened(ctx)).verify(name, connect=connect, guest=not no_guest)
    different = [fact for fact in result.facts if fact.state == "differs"]
    failure: VfioctlError | None = None
    if different:
        number = f"{len(different)} value{'s' if different[1:] else ''}"
        failure = VerifyError(f"{result.name} does not run as its document says, in {number}")
    elif result.state != "ok":
        failure = HostError(
            f"{result.name} cannot be verified: neither its CPUs nor its memory can be seen", hint="run it as root"
        )
    if as_json:
        emit_document(result)
        if failure:
            raise typer.Exit(failure.exit_code)
        return
    from vfioctl.domain.render.running import verification_page

    draw(verification_page(result))
    if failure:
        raise failure
