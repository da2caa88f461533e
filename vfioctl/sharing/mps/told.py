"""Reads what the MPS daemons of a host were told. May not change anything."""

from __future__ import annotations

from vfioctl.errors import KernelRefused
from vfioctl.kernel.host_paths import MPS_RUN
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import Reader
from vfioctl.sharing.mps.daemon import Told, told_in


def read_told(reader: Reader) -> tuple[tuple[Told, ...], tuple[str, ...]]:
    """Return what each daemon was told, and why some are not known."""
    daemons, unknown = [], []
    for name in sorted(names_in(reader, MPS_RUN)):
        if not name.endswith(".env"):
            continue
        file = f"{MPS_RUN}/{name}"
        try:
            told = told_in(reader.read(file))
        except KernelRefused as error:
            unknown.append(f"{file} cannot be read: {error.symbol}")
            continue
        if told is None or told.file != file:
            unknown.append(f"{file} is not as vfioctl writes it")
        else:
            daemons.append(told)
    return tuple(daemons), tuple(unknown)
