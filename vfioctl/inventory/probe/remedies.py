"""Commands that make a process release a device, by what runs it. May not do input or output."""

from __future__ import annotations

from shlex import quote

from vfioctl.inventory.probe.processes import Identity, Process

_STOP = {
    "docker": "docker stop {}",
    "libpod": "podman stop {}",
    "nerdctl": "nerdctl stop {}",
    "lxc": "lxc-stop --name {}",
    "machine": "machinectl poweroff {}",
}
"""Commands by container runtime. Containers of a pod end with the pod."""
_FOR_SESSIONS = ("systemd-logind.service", "seatd.service")
"""Services that open devices for login sessions, and release them at logout."""


def remedy(process: Process, who: Identity) -> str:
    """Return one line that says how to end the process; a command if there is one. Quotes every name for the shell."""
    belongs = who.belongs
    runtime, _, name = (belongs.container or "").partition("/")
    if belongs.guest:
        return f"virsh shutdown {quote(belongs.guest)}"
    if belongs.pod:
        return "delete the pod, or let it go to another node"
    if runtime in _STOP:
        return _STOP[runtime].format(quote(name))
    if process.is_vmm or runtime:
        return f"crictl stop {quote(name)}" if runtime else "shut the guest down"
    if belongs.unit in _FOR_SESSIONS:
        return "log out the session that it has it open for: loginctl list-sessions"
    service = belongs.unit if belongs.unit and belongs.unit.endswith(".service") else None
    # a user's systemd instance runs more than this process
    ends_service = service and not belongs.user_unit
    return f"systemctl stop {quote(service or '')}" if ends_service else f"end it: kill {process.pid}"
