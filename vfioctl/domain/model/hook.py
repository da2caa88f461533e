"""Libvirt's hook: its script, and the requests to install and to remove it. May not do input or output."""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import Field

from vfioctl.core.change import Intent, Plan


class _Intent(Intent):
    def title(self) -> str:
        return self.verb

    def permits(self, plan: Plan) -> bool:
        return all((change.kind, change.name) == (HOOK, SCRIPT) for change in plan.changes)


class InstallHookIntent(_Intent):
    """Let libvirt call vfioctl."""

    done: ClassVar[str] = "installed"

    verb: str = "hook install"
    command: str = Field(description="the path of vfioctl")
    ledger: str = Field(default="", description="the ledger's path, if it is not the usual one")

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        return ("vfioctl hook remove",)


class RemoveHookIntent(_Intent):
    """Let libvirt call vfioctl no more."""

    done: ClassVar[str] = "removed"

    verb: str = "hook remove"

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        return ("vfioctl hook install",)


HOOK = "hook"
"""The kind of resource."""
SCRIPT = "/etc/libvirt/hooks/qemu.d/vfioctl"
"""Where libvirt looks for it, since 6.5.0. Other scripts there, and /etc/libvirt/hooks/qemu, run as well."""
_WORD = re.compile(r"/[A-Za-z0-9._+/-]{1,200}", re.ASCII)
_HEAD = """#!/bin/sh
# Written by `vfioctl hook install`"""
"""How every script of vfioctl begins, of whatever release."""
_REST = """; `vfioctl hook remove` removes it.
# libvirt gives NAME OPERATION STEP EXTRA and the domain's XML, and refuses to start a domain if this fails.
# Domains without devices of the host never reach vfioctl, and all start if it is not there.
# libvirtd would end a running domain if this failed for `reconnect`, so that never fails.
# libvirt shows what a script says only if it fails; the system's log gets all else.
case "$2 $3" in
"prepare begin" | "release end" | "reconnect begin") ;;
*) exit 0 ;;
esac
if ! xml=$(timeout 30 cat); then
    said="vfioctl: libvirt gave no whole document within 30 s"
    printf '%s\\n' "$said" >&2
    printf '%s\\n' "$said" | logger -p daemon.warning -t vfioctl
    test "$2" != prepare
    exit
fi
case $xml in
*"<hostdev"* | *"'hostdev'"* | *urn:vfioctl:1*) ;;
*) exit 0 ;;
esac
test -x {command} || exit 0
said=$(printf '%s\\n' "$xml" | {command}{ledger} hook qemu -- "$@" 2>&1 >/dev/null)
status=$?
if test $status -ne 0 && test "$2" != reconnect; then
    printf '%s\\n' "$said" >&2
    exit $status
fi
name=$(printf %s "$1" | LC_ALL=C tr -c ' -~' '?' | cut -c 1-128)
test $status -eq 0 || said="domain $name goes on, but some of what it has may be unclaimed: see vfioctl reconcile
$said"
test -z "$said" || printf '%s\\n' "$said" | logger -p daemon.warning -t vfioctl
exit 0"""


def script(command: str, ledger: str = "") -> str:
    """Return the script. `ledger`: its path if not the usual. Raises ValueError for a path that a shell may misread."""
    for word in filter(None, (command, ledger)):
        if not _WORD.fullmatch(word) or ".." in word.split("/"):
            raise ValueError(f"not a plain absolute path: {word[:80]!r}")
    return (_HEAD + _REST).format(command=command, ledger=f" --ledger {ledger}" if ledger else "")


def is_ours(text: str) -> bool:
    """Return whether vfioctl wrote a script: this release, or another one."""
    return text.startswith(_HEAD)


def is_script(text: str) -> bool:
    """Return whether a text is such a script, with any paths."""
    match = re.search(rf"^test -x ({_WORD.pattern}) ", text, re.ASCII | re.MULTILINE)
    ledger = re.search(rf" --ledger ({_WORD.pattern}) hook qemu ", text, re.ASCII)
    try:
        return match is not None and text == script(match[1], ledger[1] if ledger else "")
    except ValueError:
        return False
