"""The environment variables that vfioctl reads, as the manual and the reference list them. A test compares the sources.

What root keeps of them is in `vfioctl.environment`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Variable(NamedTuple):
    """What a variable means, and the option that takes precedence over it."""

    meaning: str
    option: str = ""


OF_VFIOCTL: Mapping[str, Variable] = {
    "VFIOCTL_CONFIG": Variable("The configuration file, instead of /etc/vfioctl/config.toml."),
    "VFIOCTL_SIMULATE": Variable("The simulated host: the name of a bundled one, or a file.", "--simulate"),
    "VFIOCTL_HOST": Variable("The recorded host: the name of a bundled one, or a file.", "--host"),
    "VFIOCTL_ROOT": Variable("The directory with a captured tree of a host.", "--root"),
    "VFIOCTL_LEDGER": Variable("The ledger, instead of the host's own.", "--ledger"),
    "VFIOCTL_CONNECT": Variable("The URI of the libvirt that has the domains.", "domain --connect"),
    "VFIOCTL_NODE_NAME": Variable("The node's name in the cluster, instead of the host's.", "share extender --node"),
    "VFIOCTL_FAULTS": Variable(
        "Faults of a simulated host, separated by commas: 3:hang blocks its third write, 2:EBUSY makes the second fail."
    ),
    "VFIOCTL_JOURNALD_SOCKET": Variable("The socket of the system journal, for tests."),
}
OF_THE_SYSTEM: Mapping[str, Variable] = {
    "COLUMNS": Variable("The width of the output to a terminal, instead of the terminal's own."),
    "FORCE_COLOR": Variable("If it is set, text is coloured although the output is no terminal."),
    "JOURNAL_STREAM": Variable("Set by systemd for services whose errors go to the journal."),
    "NO_COLOR": Variable("If it is set, nothing is coloured."),
    "NOTIFY_SOCKET": Variable("Set by systemd: where vfioctl kubelet serve says that it is ready."),
    "SUDO_USER": Variable("The user who called sudo, recorded with each change."),
    "TERM": Variable("The type of the terminal; dumb: no colours, no moving cursor, no screens."),
    "WATCHDOG_PID": Variable("Set by systemd: the process that is watched; another one ignores WATCHDOG_USEC."),
    "WATCHDOG_USEC": Variable("Set by systemd: how often vfioctl kubelet serve must say that it works."),
    "XDG_STATE_HOME": Variable("The directory of the simulated hosts that were changed, instead of ~/.local/state."),
}
