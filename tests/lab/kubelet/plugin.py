"""vfioctl on the node: the service as a process of its own, and commands beside it, with the same ledger."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.lab.inside.command import Answer, vfioctl
from tests.lab.kubelet.node import SECONDS, STATE, Node, asked, started, within

CARD, FAR, BUSY = "lab.test/card", "lab.test/far", "lab.test/busy"
"""The resources: a display with its audio function, one alone in its group, one whose card has the node's NIC."""
CONFIGURATION = """
[kubelet]
allocate_timeout = "10m"
poll = "5s"
grace = "20s"
"""
RESOURCE = """
[[kubelet.resources]]
name = "{name}"
match = ["{address}"]
"""
METRICS_PORT = 9820
COMMAND = "import sys; sys.argv[0] = 'vfioctl'; from vfioctl.app import console; console()"


class Plugin:
    """The service `vfioctl kubelet serve`. `devices`: the address of the device of each resource. `simulated`: the file
    of the host whose devices they are, if not this one's."""

    def __init__(self, node: Node, logs: Path, devices: dict[str, str], simulated: Path | None = None) -> None:
        self.node, self.devices = node, devices
        name = simulated.stem if simulated else "plugin"
        self._log, self._ledger, self._file = logs / f"{name}.log", STATE / f"{name}.db", STATE / f"{name}.toml"
        self._host = ("--simulate", str(simulated)) if simulated else ()
        self._process: subprocess.Popen[bytes] | None = None
        tables = "".join(RESOURCE.format(name=name, address=address) for name, address in devices.items())
        self._file.write_text(CONFIGURATION + tables)

    def start(self) -> None:
        """Start it, and return at once."""
        os.environ["VFIOCTL_CONFIG"] = str(self._file)  # of all commands, too
        words = ("--ledger", self._ledger, *self._host, "kubelet", "serve")
        self._process = started(self._log, sys.executable, "-c", COMMAND, *words)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it with a signal; return its exit status, minus the signal's number where that ended it."""
        assert self._process
        self._process.send_signal(number)
        return self._process.wait(SECONDS)

    def command(self, *words: str) -> Answer:
        """Run another command, with the same ledger."""
        return vfioctl(self._ledger, *self._host, *words)

    def document(self, *words: str) -> dict[str, Any]:
        """Run another command; return its JSON."""
        done = self.command(*words, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def claims(self) -> list[dict[str, Any]]:
        """Return the live claims."""
        claims: list[dict[str, Any]] = self.document("claim", "list")["claims"]
        return claims

    def owners(self) -> list[str]:
        """Return the owners of the live claims."""
        return [str(claim["owner"]) for claim in self.claims()]

    def reason(self, resource: str) -> str:
        """Return why the device of a resource is unhealthy; empty if it is healthy."""
        (found,) = (one for one in self.document("kubelet", "status")["resources"] if one["name"] == resource)
        (device,) = found["devices"]
        assert device["id"] == self.devices[resource]
        return str(device["reason"])

    def wait_until_unhealthy(self, resource: str) -> None:
        """Wait until the service has sent that the device of a resource is unhealthy."""
        line = f'vfioctl_devices{{health="unhealthy",resource="{resource}"}} 1.0'
        self.wait_until(lambda: line in asked(METRICS_PORT, "/metrics").splitlines(), f"{resource} is unhealthy")

    def wait_until(self, condition: Any, what: str) -> None:
        """Wait for something that the service does; fail when it does not, or has ended."""
        within(condition, what, self._process)
