"""What Kata needs for devices: its drop-in, and the check of everything that must fit together."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.conftest import Golden, Run
from tests.unit.containers.test_cdi import GPU, OTHER, Ledger, a_claim, put
from vfioctl.claims.model.cdi import Node
from vfioctl.containers.api import KataApi
from vfioctl.containers.cdi.api import CdiApi
from vfioctl.containers.cdi.intent import CdiIntent
from vfioctl.containers.kata.check import Finding, permits
from vfioctl.containers.kata.settings import Needs, drop_in, merged, needs_of
from vfioctl.errors import HostError
from vfioctl.host import Host
from vfioctl.units import Uuid, format_size

GOOD = """[hypervisor.qemu]
cold_plug_vfio = "root-port"
pcie_root_port = 4
enable_annotations = ["cold_plug_vfio", "pcie_.*"]
[runtime]
vfio_mode = "guest-kernel"
pod_resource_api_sock = "/var/lib/kubelet/pod-resources/kubelet.sock"
"""
KUBELET = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"


@pytest.fixture
def host() -> Host:
    """Two GPUs of eight are on VFIO and named in a CDI file."""
    found = Host.simulated("hgx8")
    found.apply(found.binding.plan_bind([GPU, OTHER]))
    found.apply(CdiApi(found.session, Ledger()).plan(CdiIntent(everything=True)))
    return found


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "configuration.toml"
    file.write_text(GOOD)
    return file


def check(host: Host, config: Path | None, claim: str | None = None) -> dict[str, Finding]:
    ledger = Ledger(a_claim("c1", GPU))
    return {each.name: each for each in KataApi(host.session, ledger).check(config, claim=claim)}


def wrong(found: dict[str, Finding]) -> list[str]:
    assert all(each.remedy for each in found.values() if each.ok is False), "what to do"
    return [name for name, each in found.items() if each.ok is False]


class TestNeeds:
    def test_a_group_is_attached_whole_without_bridges(self) -> None:
        host = Host.simulated("shared-group")
        inventory = host.inventory()
        gpu = inventory.gpus[0]
        members = inventory.members_of(gpu.iommu_group)
        bridges = [each for each in members if inventory.by_address[each].class_code.startswith("0604")]
        needs = needs_of(inventory, [gpu.address], Node.GROUP)
        assert set(needs.functions) == set(members) - set(bridges)
        assert needs_of(inventory, [gpu.address], Node.CDEV).functions == (gpu.address,)
        both = needs_of(inventory, [gpu.address, *needs.functions[:1]], Node.GROUP)  # type: ignore[list-item] # addresses
        assert both == needs, "a function is attached once"

    def test_windows_are_powers_of_two(self, host: Host) -> None:
        inventory = host.inventory()
        needs = needs_of(inventory, [GPU], Node.GROUP)
        size = inventory.by_address[GPU].prefetchable_64
        assert size <= needs.window_64 < 2 * size
        assert needs.window_64.bit_count() == 1

    def test_a_mediated_device_needs_one_port(self, host: Host) -> None:
        uuid = Uuid("4e8c5df7-c4fa-4719-904f-5579cd5ac35f")
        assert needs_of(host.inventory(), [uuid], Node.GROUP) == Needs((uuid,), 0, 0)


class TestDropIn:
    @given(st.integers(0, 16), st.sampled_from(["guest-kernel", "vfio"]))
    def test_it_is_toml_with_the_ports(self, ports: int, mode: str) -> None:
        document = tomllib.loads(drop_in(Needs(("0000:41:00.0",) * ports, 1 << 38, 0), mode=mode))
        assert document == {
            "hypervisor": {
                "qemu": {"cold_plug_vfio": "root-port", "hot_plug_vfio": "no-port", "pcie_root_port": ports}
            },
            "runtime": {"vfio_mode": mode},
        }

    def test_more_functions_than_ports_are_refused(self) -> None:
        with pytest.raises(HostError, match="17 functions, and Kata has 16"):
            drop_in(Needs(("0000:41:00.0",) * 17, 0, 0), mode="vfio")

    def test_it_makes_a_configuration_right(self, host: Host, config: Path) -> None:
        config.write_text('[hypervisor.qemu]\ncold_plug_vfio = "no-port"\nhot_plug_vfio = "root-port"\n')
        assert {"cold_plug_vfio", "pcie_root_port"} <= set(wrong(check(host, config)))
        (config.parent / "config.d").mkdir()
        (config.parent / "config.d" / "50-vfioctl.toml").write_text(KataApi(host.session, Ledger()).config())
        assert wrong(check(host, config)) == []

    def test_of_one_claim(self, host: Host) -> None:
        api = KataApi(host.session, Ledger(a_claim("c1", GPU)))
        assert "pcie_root_port = 1\n" in api.config(claim="c1")
        assert "pcie_root_port = 2\n" in api.config()


class TestCheck:
    def test_all_is_well(self, host: Host, config: Path) -> None:
        found = check(host, config)
        assert wrong(found) == []
        assert found["CDI name of 0000:1b:00.0"].found == "vfioctl/vfio=0000-1b-00.0, /dev/vfio/21"
        assert found["resource names"].ok is None

    def test_no_configuration(self, host: Host, tmp_path: Path) -> None:
        assert wrong(check(host, None)) == ["configuration"]
        assert "No such file" in check(host, tmp_path / "none")["configuration"].found
        (tmp_path / "bad.toml").write_text("[")
        assert "no TOML" in check(host, tmp_path / "bad.toml")["configuration"].found

    @pytest.mark.parametrize(
        ("old", "new", "name"),
        [
            ('cold_plug_vfio = "root-port"', 'cold_plug_vfio = "no-port"', "cold_plug_vfio"),
            ('cold_plug_vfio = "root-port"', "", "cold_plug_vfio"),
            ('cold_plug_vfio = "root-port"', "cold_plug_vfio = 1", "cold_plug_vfio"),
            ('cold_plug_vfio = "root-port"', 'cold_plug_vfio = ["root-port"]', "cold_plug_vfio"),
            ('cold_plug_vfio = "root-port"', 'cold_plug_vfio = "switch-port"', "pcie_switch_port"),
            ("pcie_root_port = 4", "", "pcie_root_port"),
            ("pcie_root_port = 4", "pcie_root_port = 1", "pcie_root_port"),
            ("pcie_root_port = 4", "pcie_root_port = 17", "pcie_root_port"),
            ("pcie_root_port = 4", "pcie_root_port = true", "pcie_root_port"),
            ("pcie_root_port = 4", 'pcie_root_port = 4\nhot_plug_vfio = "root-port"', "hot_plug_vfio"),
            ('vfio_mode = "guest-kernel"', 'vfio_mode = "host"', "vfio_mode"),
            ('vfio_mode = "guest-kernel"', 'vfio_mode = "vfio"', "enable_iommu"),
        ],
    )
    def test_each_setting(self, host: Host, config: Path, old: str, new: str, name: str) -> None:
        config.write_text(GOOD.replace(old, new))
        assert wrong(check(host, config)) == [name]

    def test_a_drop_in_that_cannot_be_read_is_named(self, host: Host, config: Path) -> None:
        drop_in = config.parent / "config.d/50-x.toml"
        drop_in.parent.mkdir()
        os.mkfifo(drop_in)
        assert (
            check(host, config)["configuration"].found == f"{drop_in} cannot be read: it is a FIFO, not a regular file"
        )
        drop_in.unlink()
        drop_in.write_text("x")
        assert check(host, config)["configuration"].found.startswith(f"{drop_in} is no TOML: ")

    def test_a_link_to_itself_is_no_configuration(self, host: Host, config: Path) -> None:
        config.unlink()
        config.symlink_to(config.name)
        assert "Too many levels of symbolic links" in check(host, config)["configuration"].found

    def test_one_claim_needs_fewer_ports(self, host: Host, config: Path) -> None:
        config.write_text(GOOD.replace("pcie_root_port = 4", "pcie_root_port = 1"))
        assert wrong(check(host, config)) == ["pcie_root_port"]
        assert wrong(check(host, config, "c1")) == []

    def test_a_device_that_is_not_on_vfio(self, host: Host, config: Path) -> None:
        host.apply(host.binding.plan_unbind([GPU]))
        assert "driver of 0000:1b:00.0" in wrong(check(host, config, "c1"))
        host.apply(host.binding.plan_unbind([OTHER]))
        assert wrong(check(host, config)) == ["driver"]

    def test_a_device_without_a_cdi_name(self, host: Host, config: Path) -> None:
        put(host, "/var/run/cdi/vfioctl.json", "{ damaged")
        assert wrong(check(host, config)) == ["CDI name of 0000:1b:00.0", "CDI name of 0000:43:00.0"]

    @pytest.mark.parametrize(
        ("paths", "said"),
        [
            (["/dev/vfio/21", "/dev/vfio/devices/vfio0"], "exactly one node"),
            (["/dev/dri/card0"], "exactly one node"),
            (["/dev/vfio/99"], "vfioctl cdi generate"),
        ],
    )
    def test_one_node_for_each_device(self, host: Host, config: Path, paths: Sequence[str], said: str) -> None:
        """With both nodes Kata attaches the device twice."""
        edits = {"deviceNodes": [{"path": path} for path in paths]}
        device = {"name": "0000-1b-00.0", "containerEdits": edits}
        put(
            host,
            "/var/run/cdi/vfioctl.json",
            json.dumps({"cdiVersion": "0.5.0", "kind": "vfioctl/vfio", "devices": [device]}),
        )
        finding = check(host, config, "c1")["CDI name of 0000:1b:00.0"]
        assert finding.ok is False
        assert said in finding.remedy

    @pytest.mark.parametrize(
        ("node", "ok"),
        [
            ({"hostPath": "/dev/vfio/21", "path": "/dev/vfio/7"}, True),
            ({"hostPath": "/dev/vfio/99", "path": "/dev/vfio/21"}, False),
            ({"path": "/dev/vfio/21", "type": "c", "minor": 0}, True),
            ({"path": "/dev/vfio/21", "type": "c", "minor": 5}, False),
        ],
    )
    def test_a_node_is_what_the_host_has_behind_its_path(
        self, host: Host, config: Path, node: dict[str, Any], *, ok: bool
    ) -> None:
        _, major, minor = host.session.kernel.device_number("/dev/vfio/21")
        if "type" in node:
            node = node | {"major": major, "minor": minor + node["minor"]}
        device = {"name": "0000-1b-00.0", "containerEdits": {"deviceNodes": [node]}}
        document = {"cdiVersion": "0.5.0", "kind": "vfioctl/vfio", "devices": [device]}
        put(host, "/var/run/cdi/vfioctl.json", json.dumps(document))
        assert check(host, config, "c1")["CDI name of 0000:1b:00.0"].ok is ok

    def test_the_other_kind_of_node(self, host: Host, config: Path) -> None:
        put(host, "/sys/bus/pci/devices/0000:1b:00.0/vfio-dev/vfio0/dev", "511:0")
        api = KataApi(host.session, Ledger(a_claim("c1", GPU)))
        found = {each.name: each for each in api.check(config, claim="c1", node=Node.CDEV)}
        finding = found["CDI name of 0000:1b:00.0"]
        assert finding.ok is False
        assert "not its cdev node now" in finding.found
        assert "--node cdev" in finding.remedy

    def test_more_address_space_than_the_cpu_has(self, host: Host, config: Path) -> None:
        put(host, "/proc/cpuinfo", "address sizes\t: 39 bits physical, 48 bits virtual")
        finding = check(host, config)["BAR window"]
        assert (finding.ok, finding.found) == (False, "512 GiB needed, 39 bits of addresses")
        put(host, "/proc/cpuinfo", "address sizes\t: 46 bits physical, 48 bits virtual")
        assert check(host, config)["BAR window"].ok is True


class TestNames:
    """The resource must be named like the CDI kind, and each id like a device of it."""

    def plugins(self, host: Host, devices: dict[str, list[str]]) -> None:
        put(
            host, KUBELET, json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": devices}, "Checksum": 1})
        )

    def test_they_are_the_same(self, host: Host, config: Path) -> None:
        self.plugins(host, {"vfioctl/vfio": ["0000-1b-00.0"], "example.com/nic": ["a"]})
        found = check(host, config)
        assert wrong(found) == []
        assert [name for name in found if name.startswith("resource")] == ["resource vfioctl/vfio"]

    def test_the_resource_has_another_name(self, host: Host, config: Path) -> None:
        self.plugins(host, {"nvidia.com/pgpu": ["0000-1b-00.0"]})
        finding = check(host, config)["resource nvidia.com/pgpu"]
        assert (finding.ok, finding.found) == (False, "its devices are of CDI kind vfioctl/vfio")
        assert "--kind nvidia.com/pgpu" in finding.remedy

    def test_an_id_is_no_name(self, host: Host, config: Path) -> None:
        self.plugins(host, {"vfioctl/vfio": ["0000-1b-00.0", "21"]})
        assert check(host, config)["resource vfioctl/vfio"].found == "vfioctl/vfio=21 is no CDI device"

    @pytest.mark.parametrize(
        "text", ["", "{}", "[]", '{"Data": null}', '{"Data": {"RegisteredDevices": 1}}', "[" * 9999]
    )
    def test_an_odd_checkpoint_is_unknown(self, host: Host, config: Path, text: str) -> None:
        put(host, KUBELET, text)
        assert check(host, config)["resource names"].ok is None

    @pytest.mark.parametrize(
        ("annotations", "ok"),
        [("[]", False), ('["io.katacontainers.*"]', False), ('["io.katacontainers.*", "cdi.k8s.io/*"]', True)],
    )
    def test_containerd_hands_annotations_on(self, host: Host, config: Path, annotations: str, ok: bool) -> None:
        config.write_text(GOOD.replace("pod_resource_api_sock", "# pod_resource_api_sock"))
        assert check(host, config)["names of devices"].ok is None
        put(host, "/etc/containerd/config.toml", '[a.runc]\nruntime_type = "io.containerd.runc.v2"\n')
        assert check(host, config)["names of devices"].ok is None
        put(
            host,
            "/etc/containerd/config.toml",
            '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]\n'
            f'runtime_type = "io.containerd.kata.v2"\npod_annotations = {annotations}\n',
        )
        assert check(host, config)["names of devices"].ok is ok


class TestSettings:
    def test_drop_ins_add_to_tables(self) -> None:
        first: dict[str, Any] = {"a": {"x": 1, "y": 2}, "b": 1}
        assert merged([first, {"a": {"y": 3}}, {"b": {"z": 1}}]) == {"a": {"x": 1, "y": 3}, "b": {"z": 1}}

    @pytest.mark.parametrize("patterns", [None, "x", [1], ["("], ["other"], []])
    def test_annotations_that_are_not_permitted(self, patterns: object) -> None:
        assert not permits(patterns, "cold_plug_vfio")

    def test_annotations_that_are(self) -> None:
        assert permits(["(", ".*_vfio"], "cold_plug_vfio")

    def test_sizes(self) -> None:
        assert [format_size(1 << bits) for bits in (21, 38, 41)] == ["2 MiB", "256 GiB", "2 TiB"]


class TestCommandLine:
    def test_pages(self, run: Run, golden: Golden, tmp_path: Path) -> None:
        file = tmp_path / "configuration.toml"
        file.write_text('[hypervisor.qemu]\ncold_plug_vfio = "no-port"\n')
        assert run("bind 1b:00.0 43:00.0 --yes --simulate hgx8").code == 0
        lines = ["kata config --simulate hgx8", f"kata check --config {file} --simulate hgx8"]
        answers = [run(line) for line in lines]
        assert [answer.code for answer in answers] == [0, HostError.exit_code]
        text = "".join(f"$ vfioctl {line}\n{answer.out}" for line, answer in zip(lines, answers, strict=True))
        golden("claims/kata.txt", text.replace(str(tmp_path), "/etc/kata-containers"))
        assert "4 things are wrong" in answers[1].err

    def test_json(self, run: Run, golden: Golden) -> None:
        answer = run("kata check --json --simulate hgx8")
        golden("claims/kata.json", answer.out)
        assert answer.code == HostError.exit_code
        assert answer.document["ok"] is False
        assert {"name", "ok", "found", "remedy"} == set(answer.document["checks"][0])

    def test_to_a_file(self, run: Run, tmp_path: Path) -> None:
        assert run(f"kata config --mode vfio --output {tmp_path}/x.toml --simulate hgx8").code == 0
        assert tomllib.loads((tmp_path / "x.toml").read_text())["runtime"]["vfio_mode"] == "vfio"
