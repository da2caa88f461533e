"""Calls this machine's libvirt in workers, which are abandoned if it does not answer: a daemon may hang."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vfioctl.errors import HostError
from vfioctl.kernel.libvirt.answers import doing, value_of
from vfioctl.kernel.libvirt.domains import ORDER_SECONDS, QUESTION_SECONDS, START_SECONDS, TEST, asked_here, named
from vfioctl.kernel.live.stuck import call_never_returned
from vfioctl.kernel.worker.job import Unreturned
from vfioctl.kernel.worker.workers import Workers

_HINT = "systemctl status libvirtd virtqemud says whether it runs; restarting it leaves guests running"


def ask(workers: Workers, uri: str, question: str, words: Sequence[str], *, is_this_machine: bool) -> Any:
    """See `Kernel.ask_libvirt`. A capture has no libvirt, as a recorded host has none."""
    if not is_this_machine:
        return asked_here(uri, question, *words)
    what = doing(question, words)
    try:
        answer = workers.begin(named(question), uri, *words, timeout=QUESTION_SECONDS)()
    except Unreturned as late:
        raise HostError(f"{what}: libvirt at {uri} did not answer within {late.seconds:g} s", hint=_HINT) from None
    except ChildProcessError:
        raise HostError(f"{what}: the process that asked libvirt was killed") from None
    return value_of(answer, uri, question, words)


def tell(
    workers: Workers, uri: str, order: str, words: Sequence[str], *, timeout: float | None, fds: Sequence[int] = ()
) -> None:
    """See `Kernel.tell_libvirt`. Raises HostError for the test driver, which would forget at once."""
    what = doing(order, words)
    timeout = timeout or (START_SECONDS if order == "start" else ORDER_SECONDS)
    if uri.startswith(TEST):
        raise HostError(
            f"{what}: libvirt's test driver forgets it when vfioctl ends",
            hint="--simulate HOST, such as --simulate hgx8, keeps it",
        )
    try:
        answer = workers.call(named(order), uri, *words, timeout=timeout, fds=fds)
    except Unreturned as late:
        raise call_never_returned(what, _HINT, late) from None
    except ChildProcessError:
        raise HostError(f"{what} failed: its process was killed", hint="dmesg says if memory ran out") from None
    value_of(answer, uri, order, words)
