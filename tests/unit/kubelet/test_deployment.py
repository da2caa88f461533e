"""The DaemonSet, the image and the unit: the paths that vfioctl uses, and no right in the cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from vfioctl import __version__
from vfioctl.app import main
from vfioctl.claims.model.cdi import SEEN
from vfioctl.config import CONFIG, ConfigFile
from vfioctl.kubelet.model.settings import KubeletSettings
from vfioctl.published_ledger import PUBLIC
from vfioctl.session import LEDGER, MACHINE_ID
from vfioctl.settings import problems, validated
from vfioctl.untrusted_text import parse_toml

ROOT = Path(__file__).resolve().parents[3]
UNIT = dict(
    line.split("=", 1)
    for line in (ROOT / "systemd/vfioctl-kubelet.service").read_text().splitlines()
    if "=" in line and not line.startswith("#")
)
DOCUMENTS: dict[str, dict[str, Any]] = {
    document["kind"]: document for document in yaml.safe_load_all((ROOT / "deploy/vfioctl-kubelet.yaml").read_text())
}
DAEMON_SET = DOCUMENTS["DaemonSet"]["spec"]
POD = DAEMON_SET["template"]["spec"]
(CONTAINER,) = POD["containers"]
MOUNTS = {mount["mountPath"]: mount for mount in CONTAINER["volumeMounts"]}
VOLUMES = {volume["name"]: volume for volume in POD["volumes"]}
DEFAULTS = KubeletSettings()
WRITTEN = {str(LEDGER.parent), str(PUBLIC.parent), DEFAULTS.run, SEEN[1], DEFAULTS.plugins, "/dev", "/sys"}
"""Where the service writes."""
READ = {str(CONFIG.parent), MACHINE_ID, str(Path(DEFAULTS.pod_resources).parent), "/run/udev"}
READ |= {"/lib/modules", "/etc/modprobe.d"}


def test_each_path_that_the_service_uses_is_that_of_the_host() -> None:
    assert MOUNTS.keys() == WRITTEN | READ | {"/tmp"}
    assert {path for path, mount in MOUNTS.items() if not mount.get("readOnly")} == WRITTEN | {"/tmp"}
    of_host = {path: VOLUMES[mount["name"]].get("hostPath", {}).get("path") for path, mount in MOUNTS.items()}
    assert {path for path, place in of_host.items() if place == path} == (WRITTEN | READ) - {str(CONFIG.parent)}
    assert {mount["name"] for mount in MOUNTS.values()} == VOLUMES.keys()


def test_the_unit_may_write_there_too() -> None:
    own = [f"/run/{name}" for name in UNIT["RuntimeDirectory"].split()] + [f"/var/lib/{UNIT['StateDirectory']}"]
    shared = [path.removeprefix("-") for path in UNIT["ReadWritePaths"].split()]
    assert UNIT["ProtectSystem"] == "strict", "which leaves /dev and /sys writable"
    assert {*own, *shared, "/dev", "/sys"} == WRITTEN
    assert UNIT["ExecStartPre"].endswith(f" {DEFAULTS.plugins}")


def test_the_command_is_that_of_the_unit() -> None:
    assert ["vfioctl", *CONTAINER["args"]] == UNIT["ExecStart"].split()
    assert main([*CONTAINER["args"], "--help"]) == 0
    image = (ROOT / "deploy/Containerfile").read_text()
    assert 'ENTRYPOINT ["/usr/bin/vfioctl"]' in image
    assert CONTAINER["image"] == f"registry.example.com/vfioctl:{__version__}"


def test_the_configuration_is_one_that_vfioctl_takes() -> None:
    source = DOCUMENTS["ConfigMap"]
    assert (
        VOLUMES[MOUNTS[str(CONFIG.parent)]["name"]]["configMap"]["name"] == DOCUMENTS["ConfigMap"]["metadata"]["name"]
    )
    text = source["data"][CONFIG.name]
    file = ConfigFile(CONFIG, exists=True, text=text, tables=parse_toml(text))
    assert list(problems(file)) == []
    settings = validated(file, "kubelet", "vfioctl.kubelet.model.settings:KubeletSettings")
    assert settings.resources
    host, _, port = settings.listen.rpartition(":")
    for probe in ("readinessProbe", "livenessProbe"):
        assert CONTAINER[probe]["httpGet"] == {"host": host, "port": int(port), "path": "/healthz"}


def test_a_slow_health_does_not_end_the_service_before_systemd_would() -> None:
    probe = CONTAINER["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= float(UNIT["WatchdogSec"])


def test_it_has_no_right_in_the_cluster() -> None:
    assert DOCUMENTS.keys() == {"Namespace", "ServiceAccount", "ConfigMap", "DaemonSet"}, "no role"
    assert DOCUMENTS["ServiceAccount"]["automountServiceAccountToken"] is False
    assert POD["automountServiceAccountToken"] is False
    assert POD["serviceAccountName"] == DOCUMENTS["ServiceAccount"]["metadata"]["name"]
    namespace = DOCUMENTS["Namespace"]["metadata"]["name"]
    assert {d["metadata"]["namespace"] for kind, d in DOCUMENTS.items() if kind != "Namespace"} == {namespace}


def test_it_sees_the_processes_of_the_host_and_is_never_evicted() -> None:
    assert CONTAINER["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert (POD["hostPID"], POD["hostNetwork"]) == (True, True)
    assert POD["priorityClassName"] == "system-node-critical"
    assert POD["tolerations"] == [{"operator": "Exists"}]
    assert DAEMON_SET["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1}
    labels = DAEMON_SET["template"]["metadata"]["labels"]
    assert DAEMON_SET["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("seconds", [POD["terminationGracePeriodSeconds"], float(UNIT["TimeoutStopSec"])])
def test_running_calls_may_finish(seconds: float) -> None:
    assert seconds > DEFAULTS.seconds("allocate_timeout")


def test_the_paths_of_the_readme_are_those_of_the_manifest() -> None:
    text = (ROOT / "deploy/README.md").read_text()
    named = set(re.findall(r"`(/(?:dev|etc|lib|run|sys|var)[\w./-]*)`", text)) | {str(CONFIG.parent)}
    assert MOUNTS.keys() - named <= {"/tmp", str(Path(DEFAULTS.pod_resources).parent)}
    assert named <= MOUNTS.keys()
