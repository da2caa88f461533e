"""`vfioctl apply`: a saved plan, read with suspicion, run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from vfioctl.console.changes import carry_out
from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.options import AsJson, Yes
from vfioctl.errors import BadDocument

if TYPE_CHECKING:
    from pydantic import ValidationError

    from vfioctl.core.change import Plan

app = typer.Typer(add_completion=False)

LARGEST = 4 << 20
"""Bytes; a plan for a thousand functions has about one million."""

_HINT = "write a new one: vfioctl bind DEVICE --dry-run --json > plan.json"


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl bind gpu1 --dry-run --json --simulate hgx8 > plan.json
  vfioctl apply plan.json --simulate hgx8
  vfioctl unbind gpu1 --dry-run --json --simulate hgx8 | vfioctl apply - --simulate hgx8""",
)
def apply(
    ctx: typer.Context,
    plan_file: Annotated[str, typer.Argument(metavar="PLANFILE|-", help="The plan, or - to read it from stdin.")],
    *,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Run a plan that was saved with --dry-run --json.

    It runs only while every fact it rests on still holds; otherwise it is refused and a new plan is needed.
    """
    saved = _understood(_read(plan_file), plan_file)
    host = chosen(ctx).open()
    carry_out(host, host.plan_again(saved), ask=not yes, as_json=as_json)


def _read(name: str) -> bytes:
    try:
        if name == "-" and sys.stdin is not None:
            return _limited(sys.stdin.buffer, "on stdin")
        with Path(name).open("rb") as file:
            return _limited(file, name)
    except OSError as error:
        failure = BadDocument(f"the plan {name} cannot be read")
        failure.kernel_said = error.strerror or str(error)
        raise failure from error


def _limited(file: BinaryIO, name: str) -> bytes:
    data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise BadDocument(f"the plan {name} is larger than {LARGEST >> 20} MiB", hint=_HINT)
    return data


def _understood(data: bytes, name: str) -> "Plan":
    from pydantic import ValidationError

    from vfioctl.core.change import Plan

    try:
        return Plan.model_validate_json(data)
    except ValidationError as error:
        raise BadDocument(f"{name} is not a plan: {_first_reason(error)}", hint=_HINT) from error


def _first_reason(error: "ValidationError") -> str:
    """The first of them: a damaged document has hundreds that follow from it."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]
