"""The initramfs of the next boot: what renews it, and whether it is older than what is persistent. Reads only: vfioctl
never renews it itself."""

from __future__ import annotations

from vfioctl.errors import KernelRefused
from vfioctl.kernel.host_paths import (
    DEVICES,
    DRACUT_MODULE,
    INITRAMFS_TOOLS,
    PACKAGED_INITRAMFS_TOOLS,
    PROGRAMS,
    RENEWERS,
)
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.protocol import FileReader

HOOKS = (
    f"{INITRAMFS_TOOLS}/hooks/vfioctl",
    f"{PACKAGED_INITRAMFS_TOOLS}/hooks/vfioctl",
    f"{DRACUT_MODULE}/module-setup.sh",
)
_IMAGES = ("/boot/initrd.img-{}", "/boot/initramfs-{}.img")
_RELEASE = "/proc/sys/kernel/osrelease"


def renewal(kernel: FileReader) -> str:
    """Return the command that renews the initramfs; empty where there is none, or vfioctl is not in it."""
    return command(kernel) if any(map(kernel.has, HOOKS)) else ""


def command(kernel: FileReader) -> str:
    """Return the command that renews the initramfs; empty where there is none that vfioctl has a hook for."""
    return next((command for program, command in RENEWERS.items() if kernel.has(program)), "")


def renewal_notes(kernel: FileReader) -> tuple[str, ...]:
    """Return a note for a plan that changes what is in the initramfs; none where vfioctl is not in it."""
    known = renewal(kernel)
    return (f"the initramfs has what was persistent when it was made: then run {known}",) if known else ()


def outdated(kernel: FileReader) -> str:
    """Return which file is newer than the initramfs of the running kernel, and the command that renews it, after a
    colon; empty if none is, or that is not known.

    A definition that is added, changed or removed changes the time of its directory."""
    release = text_of(kernel, _RELEASE)
    image = next((path for path in (form.format(release) for form in _IMAGES) if kernel.has(path)), "")
    known = renewal(kernel)
    if not image or not known:
        return ""
    parts = (*HOOKS, f"{PROGRAMS}/vfioctl-early") if names_in(kernel, DEVICES) else ()
    made = _time(kernel, image)
    newer = (path for path in (DEVICES, *parts) if made and _time(kernel, path) > made)
    return next((f"{image} is older than {path}: {known}" for path in newer), "")


def _time(kernel: FileReader, path: str) -> float:
    try:
        return kernel.modified(path)
    except KernelRefused:
        return 0.0
