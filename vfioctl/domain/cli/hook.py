"""`vfioctl hook`: what libvirt calls, and its installation. May not add behaviour to the api."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from vfioctl.console.changes import carry_out, reporting
from vfioctl.console.choice import opened
from vfioctl.console.lazy import group_app
from vfioctl.console.options import AsJson, DryRun, Yes
from vfioctl.console.output import say
from vfioctl.domain.api import DomainApi
from vfioctl.errors import BadDocument, BadSpec

app = group_app("hook")
_LONGEST_XML = 4 << 20
_SECONDS = 120
"""libvirt waits for its hooks without a limit; so they have one, reading the document included. A change that is under
way then is rolled back."""
_LOCK_SECONDS = 90.0
"""How long another change of the host may take: what a domain gives back late, it gives back."""


@app.group_with_examples("""
  vfioctl hook install
  vfioctl hook install --dry-run
  vfioctl hook remove""")
def hook() -> None:
    """Prepare devices whenever libvirt starts a domain.

    With the hook, the devices of a domain that vfioctl defined are claimed, bound and verified also when virsh,
    virt-manager or libvirt's autostart starts it, and released when it ends. Devices of other domains are claimed for
    them while they run."""


@app.with_examples("""
  vfioctl hook install
  vfioctl hook install --command /usr/local/bin/vfioctl --dry-run""")
def install(
    ctx: typer.Context,
    *,
    command: Annotated[
        str,
        typer.Option("--command", metavar="PATH", help="Path of the vfioctl that libvirt calls; default: this one."),
    ] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write the script /etc/libvirt/hooks/qemu.d/vfioctl, which libvirt runs for each domain.

    libvirtd finds it after a restart; running guests are not affected. The script calls vfioctl only for
    domains with devices of the host, or of vfioctl, and lets all domains start if vfioctl is no longer installed."""
    session = opened(ctx)
    plan = DomainApi(session).hook.plan_install(command or _this_command())
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)


@app.with_examples("""
  vfioctl hook remove
  vfioctl hook remove --dry-run""")
def remove(ctx: typer.Context, *, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove the script. Running domains keep their claims until vfioctl domain stop."""
    session = opened(ctx)
    carry_out(session, DomainApi(session).hook.plan_remove(), dry_run=dry_run, yes=yes, as_json=as_json)


@app.with_examples("""
  virsh dumpxml web1 | vfioctl hook qemu web1 prepare begin -""")
def qemu(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The domain's name.")],
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="prepare, release or reconnect.")],
    step: Annotated[str, typer.Argument(metavar="STEP", help="begin or end.")],
    extra: Annotated[str, typer.Argument(metavar="EXTRA", help="libvirt's fourth argument; unused.")] = "-",
) -> None:
    """Called by libvirt with the domain's XML on standard input.

    prepare begin: claim and bind what the domain needs; libvirt does not start it if this fails, and shows the reason.
    release end: release it. reconnect begin: claim what a domain that runs already has, and fail if another guest has
    claimed some of it, so that the script writes to the system's log. Other operations do nothing."""
    del extra
    with _end_in_time(), reporting():
        xml = typer.get_binary_stream("stdin").read(_LONGEST_XML + 1)
        if len(xml) > _LONGEST_XML:
            raise BadDocument(f"the document of {name[:60]!r} is larger than {_LONGEST_XML >> 20} MiB")
        session = opened(ctx)
        session.lock_wait = _LOCK_SECONDS
        if note := DomainApi(session).hook.answer(name, (operation, step), xml):
            say(f"vfioctl: {note}")


@contextmanager
def _end_in_time() -> Iterator[None]:
    """Ask this process to end when the time is up, as SIGTERM does: a change under way is rolled back."""
    before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _this_command() -> str:
    installed = Path(sys.executable).with_name("vfioctl")
    path = str(installed) if installed.exists() else shutil.which("vfioctl")
    if not path:
        raise BadSpec("where vfioctl is installed is not known", hint="say it with --command PATH")
    return path
