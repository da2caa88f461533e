"""A node for tests: a simulated host with its ledger, a kubelet that is played, and the device plugin as a
thread or a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.hosts.machines import put_process
from tests.kubelet.kubelet import Kubelet
from tests.kubelet.pods import Pod, pod
from vfioctl.claims.model.claim import Claim
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.tree import Tree, form
from vfioctl.kernel.simulated.faults import parse_fault
from vfioctl.kernel.simulated.groups import driver_of
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.kubelet.model.status import status_document

_PROGRAM = """
import sys
import vfioctl.kubelet.model.settings as settings
settings._SHORTEST = 0.01
from vfioctl.app import main
sys.exit(main())
"""
"""The command line, which takes shorter durations than users may set."""
PROGRAM = (sys.executable, "-c", _PROGRAM)
POLL, GRACE = 0.2, 1.5
"""Seconds between two questions about pods, and until a claim without a pod is over."""


class Node:
    """Start its service, stop it, or kill it; look at its host as another process does."""

    def __init__(self, folder: Path, kubelet: Kubelet, tree: Tree, resources: str, **settings: str) -> None:
        """`resources`: the tables of the resources."""
        self.kubelet, self.folder = kubelet, folder
        self.file, self.config = folder / "node.host", folder / "config.toml"
        self.file.write_text(form(tree))
        known = {
            "plugins": str(kubelet.plugins),
            "pod_resources": str(kubelet.pod_resources),
            "listen": "",
            "run": str(folder / "run"),
            "poll": f"{POLL:g}s",
            "grace": f"{GRACE:g}s",
            "allocate_timeout": "20s",
            **settings,
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in known.items()]
        self.config.write_text("\n".join(["[kubelet]", *lines, "", resources]))
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._log = folder / "service.log"

    # --- the service

    def start(self, *resources: str, faults: str = "") -> None:
        """Starts the service in a thread, and waits until the kubelet has the devices of the resources. `faults`: as
        the variable VFIOCTL_FAULTS names them."""
        assert self._thread is None
        assert self._process is None
        host = Host.simulated(str(self.file), faults=[parse_fault(text) for text in faults.split(",") if text])
        self._ended = threading.Event()
        arguments = {"stop": self._ended.is_set, "ready": lambda _: None}
        self._thread = threading.Thread(target=host.kubelet.serve, kwargs=arguments, daemon=True)
        self._thread.start()
        for resource in resources:
            self.until_known(resource)

    def start_process(self, *resources: str, faults: str = "") -> None:
        """The same as a process of its own, which can be killed."""
        assert self._thread is None
        assert self._process is None
        words = ("--simulate", str(self.file), "kubelet", "serve", "--config", str(self.config))
        with self._log.open("ab") as log:
            environment = {**os.environ, "VFIOCTL_FAULTS": faults}
            self._process = subprocess.Popen((*PROGRAM, *words), env=environment, stdout=log, stderr=log)
        for resource in resources:
            self.until_known(resource)

    def until_known(self, resource: str) -> None:
        """Waits until the kubelet has healthy devices of a resource."""
        eventually(lambda: self.kubelet.healthy(resource), f"{resource} has no healthy device", 60, log=self.log)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else os.getpid()

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends the service, and returns its exit status; a thread knows no signals."""
        thread, self._thread = self._thread, None
        process, self._process = self._process, None
        code = 0
        if thread:
            self._ended.set()
            thread.join(60)
            assert not thread.is_alive()
        if process:
            process.send_signal(number)
            code = process.wait(60)
        self.kubelet.wait_for_loss()
        return code

    def kill(self) -> None:
        """Ends a process at once, and a thread as soon as can be."""
        self.stop(signal.SIGKILL)

    def wait_for_death(self) -> int:
        """Waits until the process has ended by itself, as after the fault `die`."""
        assert self._process is not None
        code, self._process = self._process.wait(60), None
        self.kubelet.wait_for_loss()
        return code

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs another command on this host."""
        command = (*PROGRAM, "--simulate", str(self.file), *words)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    # --- the host

    @property
    def host(self) -> Host:
        """As another process sees it."""
        return Host.simulated(str(self.file))

    @property
    def kernel(self) -> Simulated:
        return Simulated.at(self.file)

    @contextmanager
    def changed(self) -> Iterator[Tree]:
        """The host's tree, to be changed behind the service's back."""
        kernel = self.kernel
        with kernel._turn():
            yield kernel.tree

    def driver(self, address: str) -> str | None:
        tree = self.kernel.tree
        return driver_of(tree, tree.resolve(f"{PCI_DEVICES}/{address}"))

    def drivers(self) -> Mapping[str, str | None]:
        """The driver of each function."""
        tree = self.kernel.tree
        names = tree.directories[PCI_DEVICES]
        return {name: driver_of(tree, tree.resolve(f"{PCI_DEVICES}/{name}")) for name in names}

    def vfio_node(self, address: str) -> str:
        function = self.host.inventory().by_address[PciAddress(address)]
        return f"/dev/vfio/{function.iommu_group}"

    @contextmanager
    def opened(self, *nodes: str, pid: int = 4242, name: str = "qemu-system-x86") -> Iterator[None]:
        """A process that has these files open, meanwhile."""
        with self.changed() as tree:
            put_process(tree, pid, *nodes, name=name)
        try:
            yield
        finally:
            with self.changed() as tree:
                tree.remove(f"/proc/{pid}")

    def reboot(self, *, boot_id: str = "00000000-0000-4000-8000-0000000000ff") -> None:
        """The host and the kubelet go down, and the host starts; start the service and the kubelet then."""
        self.kill()
        self.kubelet.shut_down()
        self.kernel.reboot(boot_id)

    # --- the ledger

    def claims(self) -> Sequence[Claim]:
        """The live ones."""
        return self.host.claims.claims()

    def owners(self) -> Mapping[str, str]:
        """The owner of each device that was asked for in a live claim."""
        return {str(d.subject): c.owner for c in self.claims() for d in c.devices if d.asked}

    def until_owned(self, owner: str, count: int = 1) -> Sequence[str]:
        """Waits until an owner has so many devices, and returns them."""

        def owned() -> Sequence[str]:
            devices = [device for device, who in self.owners().items() if who == owner]
            return devices if len(devices) == count else ()

        found: Sequence[str] = eventually(owned, f"{owner} has not {count}: {self.owners()}", log=self.log)
        return found

    def until_free(self, *, seconds: float = 15.0) -> None:
        """Waits until no claim is left."""
        eventually(lambda: not self.claims(), "claims are left", seconds, log=self.log)

    def status(self) -> Any:
        """The document of `vfioctl kubelet status --json`."""
        return status_document(self.host.kubelet.status())

    def reason(self, device: str) -> str:
        """Why a device is unhealthy, as the status says; empty if it is healthy."""
        devices = [d for resource in self.status()["resources"] for d in resource["devices"]]
        return next(str(d["reason"] or "") for d in devices if d["id"] == device)


def eventually(
    condition: Callable[[], Any], otherwise: str, seconds: float = 10.0, *, log: Callable[[], str] = str
) -> Any:
    """Waits for a true result, and returns it. Raises AssertionError."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"not in {seconds:g} s: {otherwise}\n{log()}"
        time.sleep(0.02)
    return result


def resource(name: str, *words: str, **settings: object) -> str:
    """A table of the configuration: a resource whose devices match the words."""
    lines = {"name": name, "match": list(words), **settings}
    return "\n".join(["[[kubelet.resources]]", *(f"{key} = {json.dumps(value)}" for key, value in lines.items()), ""])


H100 = "nvidia.com/GH100_H100"
FIRST, SECOND, THIRD, FOURTH = NEAR = ("0000:1b:00.0", "0000:43:00.0", "0000:9d:00.0", "0000:c3:00.0")
"""GPUs of `hgx8`: two of NUMA node 0, two of node 1."""
ALL = frozenset(NEAR)
SERVER = resource(H100, "10de:2330")
RELEASED_IN = 4 * POLL + GRACE + 10
"""Seconds until the device of a pod that is gone is free, at most."""


def one(name: str = "one", count: int = 1) -> Pod:
    """A pod whose container `app` gets so many of these GPUs."""
    return pod(name, app={H100: count})
