"""`vfioctl man`: shows the manual. Needs no host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from difflib import get_close_matches
from typing import Annotated

import typer

from vfioctl.console.lazy import App, LazyGroup
from vfioctl.console.manual.commands import command_page, program_page
from vfioctl.console.manual.page import ManualPage, command_manual, program_manual
from vfioctl.console.output import emit_file, width
from vfioctl.environment import PATH
from vfioctl.errors import BadSpec
from vfioctl.signals import Interrupt

app = App(add_completion=False)


def complete_command(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the commands that begin so, with what they do."""
    return [(name, place.summary) for name, place in _group(ctx).places.items() if name.startswith(incomplete)]


@app.with_examples("""
  vfioctl man
  vfioctl man bind
  vfioctl man claim | grep -A 2 -- --ttl""")
def man(
    ctx: typer.Context,
    command: Annotated[
        str | None,
        typer.Argument(metavar="COMMAND", help="A command, such as bind.", autocompletion=complete_command),
    ] = None,
) -> None:
    """Show the manual page of vfioctl, or of one of its commands.

    On a terminal, man(1) shows the page if it is installed. Otherwise, and in a pipe, it is printed as plain text."""
    page = _manual(_group(ctx), command)
    if sys.stdout.isatty() and _shown_by_man(page):
        return
    from vfioctl.console.manual.text import text

    emit_file(text(page, width()))


def _group(ctx: typer.Context) -> LazyGroup:
    group = ctx.find_root().command
    assert isinstance(group, LazyGroup)
    return group


def _manual(group: LazyGroup, command: str | None) -> ManualPage:
    if command is None:
        return program_manual(program_page(group))
    if command not in group.places:
        near = get_close_matches(command, group.places)
        raise BadSpec(
            f"there is no command {command}",
            hint=f"the nearest is {near[0]}" if near else "",
            next_command="vfioctl --help",
        )
    return command_manual(command_page(group, command))


def _shown_by_man(page: ManualPage) -> bool:
    """Return whether man(1) is installed and has shown the page."""
    from vfioctl.console.manual.roff import roff

    program = shutil.which("man", path=PATH)
    if program is None:
        return False
    # with the caller's environment, which names the pager; root's was cleared of that
    viewer = subprocess.Popen([program, "-l", "-"], stdin=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert viewer.stdin is not None
        with suppress(BrokenPipeError), viewer.stdin as source:
            source.write(roff(page))
        return _ended(viewer) == 0
    finally:
        viewer.terminate()


def _ended(viewer: subprocess.Popen[str]) -> int:
    """Wait for a program that handles Ctrl-C itself, as pagers do. Raises Interrupt for other signals."""
    while True:
        try:
            return viewer.wait()
        except Interrupt:
            raise
        except KeyboardInterrupt:
            continue
