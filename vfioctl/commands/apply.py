"""`vfioctl apply`: runs a saved plan, after planning it again to verify it. May not run a plan that differs."""

import errno
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.changes import carry_out, confirm_all, progress_lines, reporting, tell
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, Yes
from vfioctl.console.output import emit, emit_document
from vfioctl.errors import BadDocument
from vfioctl.host import Host
from vfioctl.kernel.untrusted_files import read_file, read_stream
from vfioctl.untrusted_text import parse_json

if TYPE_CHECKING:
    from vfioctl.core.change import Plan

app = App(add_completion=False)

LARGEST = 4 << 20
"""Maximum size of a plan file in bytes. A plan for a thousand functions has about one million."""

_HINT = "write a new one: vfioctl bind DEVICE --dry-run --json > plan.json"
_ADVICE = {errno.EFBIG: _HINT, errno.ENXIO: "to read a pipe, name it -"}


@app.with_examples("""
  vfioctl bind gpu1 --dry-run --json --simulate hgx8 > plan.json
  vfioctl apply plan.json --simulate hgx8
  vfioctl unbind gpu1 --dry-run --json --simulate hgx8 | vfioctl apply - --simulate hgx8""")
def apply(
    ctx: typer.Context,
    plan_file: Annotated[str, typer.Argument(metavar="PLANFILE|-", help="The plan, or - to read it from stdin.")],
    *,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Run a plan that was saved with --dry-run --json.

    A plan whose facts no longer hold is refused as stale. Plans saved by vgpu restore are run one after another, up to
    the first failure."""
    data = _read(plan_file)
    session = opened(ctx)
    host = Host(session)
    try:
        several = host.read_plans(data)
        saved = (host.read_plan(data),) if several is None else several
    except BadDocument as error:
        error.message = f"{'stdin' if plan_file == '-' else plan_file}: {_instead(data) or error.message}"
        error.hint = error.hint or _HINT
        raise
    if several is None:
        carry_out(session, host.replan(*saved), yes=yes, as_json=as_json)
    else:
        _carry_out_all(host, saved, yes=yes, as_json=as_json)


def _carry_out_all(host: Host, plans: "Sequence[Plan]", *, yes: bool, as_json: bool) -> None:
    session = host.session
    if not yes:
        confirm_all(session, lambda: [plan for plan in map(host.replan, plans) if not plan.nothing_to_do])
    outcomes = []
    with reporting():
        for saved in plans:
            outcomes.append(session.apply(host.replan(saved), progress=progress_lines(session)))
            if not as_json:
                tell(session, outcomes[-1], as_json=False)
    if as_json:
        emit_document({"outcomes": outcomes})
    elif not plans:
        emit("Nothing to do.")


def _instead(data: bytes) -> str:
    """Return what a failed command has left in place of a plan; empty for anything else."""
    if not data.strip():
        return "not a plan: it is empty"
    try:
        message = parse_json(data)["error"]["message"]
    except (ValueError, TypeError, LookupError):
        return ""
    return f"not a plan, but a failure: {message}"


def _read(name: str) -> bytes:
    if not name:
        raise BadDocument("the name of the plan file is empty", hint="name it, or - to read it from stdin")
    try:
        if name == "-" and sys.stdin is not None:
            return read_stream(sys.stdin.buffer, LARGEST)
        return read_file(name, LARGEST)
    except OSError as error:
        what, why = "on stdin" if name == "-" else name, error.strerror or str(error)
        raise BadDocument(f"the plan {what} cannot be read: {why}", hint=_ADVICE.get(error.errno or 0, "")) from error
