"""The command `vfioctl` itself: its own options, and the way into the others.

May not import what only some command needs: not the models, not the host, not rich.
"""

import errno as errnos
import os
from typing import Annotated

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from vfioctl.console import host_options
from vfioctl.console.choice import Choice
from vfioctl.console.lazy import LazyGroup
from vfioctl.console.output import OutputLost, ReaderGone, abandon_stdout, tell_version
from vfioctl.errors import RequestError

_OUTPUT_ERRNOS = frozenset({errnos.EPIPE, errnos.ENOSPC, errnos.EDQUOT, errnos.EFBIG, errnos.EIO})

app = typer.Typer(
    cls=LazyGroup,
    invoke_without_command=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's form of a callback
    if wanted:
        tell_version()
        raise typer.Exit


@app.callback()
def vfioctl(
    ctx: typer.Context,
    *,
    root: host_options.Root = None,
    host: host_options.Recorded = None,
    simulate: host_options.Simulated = None,
    ledger: host_options.Ledger = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Say the version.")
    ] = False,
) -> None:
    """Hands GPUs over: from the host's driver to a virtual machine or a secure container, and back.

    Every command can be tried on a simulated host, without a GPU: vfioctl inventory --simulate hgx8
    """
    del root, host, simulate, ledger, version  # their callbacks have taken note of them
    if ctx.invoked_subcommand is None:
        ctx.get_help()
        raise typer.Exit(2)


def run(words: list[str], choice: Choice) -> int:
    """Parses and runs a command line, and notes in `choice` which host it is about.

    Raises VfioctlError (RequestError for what cannot be parsed) and ReaderGone.
    """
    command = get_command(app)
    if "_VFIOCTL_COMPLETE" in os.environ:
        command.main(words, prog_name="vfioctl")
    try:
        with command.make_context("vfioctl", words, obj=choice) as ctx:
            command.invoke(ctx)
    except typer.Exit as done:
        return done.exit_code
    except TyperException as error:
        raise _usage(error) from error
    except OSError as error:
        if error.filename is None and error.errno in _OUTPUT_ERRNOS:
            raise _lost(error) from error
        raise
    return 0


def _lost(error: OSError) -> Exception:
    """Help is written by typer: what failed there is told like any result that was lost."""
    abandon_stdout()
    return ReaderGone() if error.errno == errnos.EPIPE else OutputLost.because(error)


def _usage(error: TyperException) -> RequestError:
    context = getattr(error, "ctx", None)
    return RequestError(error.format_message(), next_command=f"{context.command_path if context else 'vfioctl'} --help")
