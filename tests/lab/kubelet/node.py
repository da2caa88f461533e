"""A Kubernetes node without an API server: Debian's containerd and kubelet, with static pods, started by hand.

Its files are in tmpfs, its logs in the results of the lab. Pods come from a directory; what became of them is asked of
the kubelet's read-only port.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from tests.lab.inside import in_use
from tests.lab.kubelet import images

SECONDS = 600.0
"""Programs in Go start slowly in an emulated machine, and much more so on a busy one."""
PROGRAMS = Path("/run/lab/kubelet")
STATE = Path("/run/node")
PLUGINS = Path("/var/lib/kubelet/device-plugins")
MANIFESTS = STATE / "manifests"
CONTAINERD = STATE / "containerd.sock"
READ_ONLY_PORT = 10255
NAME = "node"
"""Of the node; the kubelet appends it to the names of static pods."""
ADDRESS = "192.0.2.2"

CONTAINERD_SETTINGS = f"""
version = 2
root = "{STATE}/containerd"
state = "{STATE}/containerd-state"
[grpc]
address = "{CONTAINERD}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{images.NAME}"
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{PROGRAMS}/runc"
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "{STATE}/cni"
"""
KUBELET_SETTINGS = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "staticPodPath": str(MANIFESTS),
    "address": "127.0.0.1",
    "readOnlyPort": READ_ONLY_PORT,
    "cgroupDriver": "cgroupfs",
    "topologyManagerPolicy": "best-effort",
    "failSwapOn": False,
    "makeIPTablesUtilChains": False,
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
    "fileCheckFrequency": "1s",
    "syncFrequency": "1s",
}
# nobody waits for name servers, for the metadata of a cloud, or for a network of pods: none of them is there
HOSTS = f"127.0.0.1 localhost\n{ADDRESS} {NAME}\n"
NAME_SERVERS = "nameserver 127.0.0.1\n"
ENVIRONMENT = {"AWS_EC2_METADATA_DISABLED": "true"}
NOTHING: Mapping[str, int] = {}
NETWORK = {"cniVersion": "0.3.1", "name": "none", "plugins": [{"type": "none"}]}


class Node:
    """The node, with containerd running. Tests end the kubelet, and start it again, as they want."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._kubelet: subprocess.Popen[bytes] | None = None

    def start_kubelet(self) -> None:
        """Start it, and return at once: it takes plugins some seconds later."""
        options = [
            f"--config={STATE}/kubelet.yaml",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{CONTAINERD}",
            f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}",
            "--v=2",
        ]
        self._kubelet = started(self._logs / "kubelet.log", PROGRAMS / "kubelet", *options)

    def stop_kubelet(self) -> None:
        """End it, as systemd does. Pods go on."""
        if self._kubelet:
            self._kubelet.terminate()
            self._kubelet.wait(SECONDS)
            self._kubelet = None

    def counted(self, metric: str, resource: str) -> int:
        """Return one of the kubelet's own counters of device plugins; 0 while the kubelet does not answer."""
        text = asked(READ_ONLY_PORT, "/metrics")
        found = re.search(rf'^{metric}{{resource_name="{resource}"}} (\d+)$', text, re.MULTILINE)
        return int(found[1]) if found else 0

    def registrations(self, resource: str) -> int:
        """Return how often a plugin has registered this resource since the kubelet's start."""
        return self.counted("kubelet_device_plugin_registration_total", resource)

    def allocations(self, resource: str) -> int:
        """Return how many calls of Allocate have ended since the kubelet's start."""
        return self.counted("kubelet_device_plugin_alloc_duration_seconds_count", resource)

    def add_pod(self, name: str, needs: Mapping[str, int], command: str, *, init: Mapping[str, int] = NOTHING) -> None:
        """Write a static pod with one container, which runs a command of the shell. `needs`: how many devices of each
        resource it wants. `init`: the same of an init container, which does nothing."""
        first = [_container("first", init, "true")] if init else []
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "hostNetwork": True,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "initContainers": first,
                "containers": [_container("main", needs, command)],
            },
        }
        written = STATE / f"{name}.json"
        written.write_text(json.dumps(manifest))
        written.rename(MANIFESTS / written.name)

    def remove_pod(self, name: str) -> None:
        """Remove a pod's file. The kubelet ends its containers then."""
        (MANIFESTS / f"{name}.json").unlink(missing_ok=True)

    def pod(self, name: str) -> dict[str, Any]:
        """Return the status that the kubelet gives a pod; empty if it knows none of that name."""
        answer = asked(READ_ONLY_PORT, "/pods")
        pods = (json.loads(answer)["items"] or []) if answer else []
        return next((pod["status"] for pod in pods if pod["metadata"]["name"] == f"{name}-{NAME}"), {})

    def wait_for_pod(self, name: str, phase: str) -> dict[str, Any]:
        """Wait for a pod's phase; return its status."""
        self.within(lambda: self.pod(name).get("phase") == phase, f"{name} is {phase}")
        return self.pod(name)

    def said(self, name: str) -> str:
        """Return what the containers of a pod have said."""
        logs = Path("/var/log/pods").glob(f"default_{name}-{NAME}_*/main/*.log")
        return "".join(log.read_text() for log in logs)

    def within(self, condition: Callable[[], object], what: str) -> None:
        """Return once it holds; fail when it does not come to, or the kubelet has ended."""
        within(condition, what, self._kubelet)


def _container(name: str, needs: Mapping[str, int], command: str) -> dict[str, Any]:
    return {
        "name": name,
        "image": images.NAME,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command],
        "resources": {"limits": {resource: str(count) for resource, count in needs.items()}},
    }


@contextmanager
def running(logs: Path, nic: str) -> Iterator[Node]:
    """A node until the block ends. `nic`: a function whose interface gets an address, as the kubelet wants one."""
    _prepare(nic)
    node = Node(logs)
    containerd = started(logs / "containerd.log", PROGRAMS / "containerd", "--config", STATE / "containerd.toml")
    try:
        within(CONTAINERD.exists, "containerd answers", containerd)
        node.start_kubelet()
        image = images.archive(STATE / "image.tar")
        _run(PROGRAMS / "ctr", "--address", CONTAINERD, "--namespace", "k8s.io", "images", "import", image)
        yield node
    finally:
        node.stop_kubelet()
        containerd.terminate()
        containerd.wait(SECONDS)


def within(condition: Callable[[], object], what: str, process: "subprocess.Popen[bytes] | None" = None) -> None:
    """Return once it holds; fail when it does not come to, or the process that it depends on has ended."""
    until = time.monotonic() + SECONDS
    while not condition():
        assert process is None or process.poll() is None, f"{process.args!r} ended before: {what}"
        assert time.monotonic() < until, f"not within {SECONDS:.0f} s: {what}"
        time.sleep(0.2)


def started(log: Path, *command: object) -> "subprocess.Popen[bytes]":
    """Start a program of the node. What it says is appended to a log."""
    environment = {**os.environ, **ENVIRONMENT, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    with log.open("ab") as out:
        return subprocess.Popen([*map(str, command)], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)


def asked(port: int, path: str) -> str:
    """Return what a server of this machine answers; empty if it does not."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    with closing(connection), suppress(OSError, HTTPException):
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    return ""


def _prepare(nic: str) -> None:
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "squashfs", "-o", "ro", "/dev/disk/by-id/virtio-kubelet", PROGRAMS)
    # what the kubelet mounts is to be seen in containers
    _run("mount", "--make-rshared", "/")
    for place in (STATE, Path("/var/lib/kubelet"), Path("/var/log")):
        place.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", place)
    _run("mount", "--make-rshared", "/var/lib/kubelet")
    for place in (MANIFESTS, STATE / "cni", PLUGINS):
        place.mkdir(parents=True)
    (STATE / "containerd.toml").write_text(CONTAINERD_SETTINGS)
    (STATE / "kubelet.yaml").write_text(json.dumps(KUBELET_SETTINGS))
    (STATE / "cni/none.conflist").write_text(json.dumps(NETWORK))
    for file, text in (("hosts", HOSTS), ("resolv.conf", NAME_SERVERS)):
        (STATE / file).write_text(text)
        _run("mount", "--bind", STATE / file, Path("/etc", file))
    interface = in_use.interface(nic)
    _run("ip", "address", "add", f"{ADDRESS}/24", "dev", interface)
    _run("ip", "link", "set", interface, "up")
    _run("ip", "route", "add", "default", "dev", interface)


def _run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
