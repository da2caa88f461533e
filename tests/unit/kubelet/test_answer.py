"""The answer to an Allocate, for each kind of consumer."""

from __future__ import annotations

import re

import pytest

from tests.unit.kubelet.values import GPU, MDEV, NAME, OTHER, resource
from vfioctl.claims.model.claim import Nodes
from vfioctl.errors import HostError
from vfioctl.inventory.model.values import Subject
from vfioctl.kubelet.answer.answer import Answer, NodeSpec, answer
from vfioctl.kubelet.model.settings import ResourceSettings

NODES = {
    str(GPU): Nodes("/dev/vfio/12", "/dev/vfio/devices/vfio0"),
    str(OTHER): Nodes("/dev/vfio/13", "/dev/vfio/devices/vfio1"),
    str(MDEV): Nodes("/dev/vfio/20", None),
    "0000:41:00.1": Nodes("/dev/vfio/12", "/dev/vfio/devices/vfio7"),
}
"""With a companion of GPU, which no container gets."""


def answered(settings: ResourceSettings, *subjects: Subject) -> Answer:
    return answer(settings, subjects, NODES)


def paths(found: Answer) -> list[str]:
    assert all(node.permissions == "rw" for node in found.nodes)
    return [node.path for node in found.nodes]


class TestDevices:
    def test_are_the_control_node_and_one_node_for_each(self) -> None:
        assert paths(answered(resource(), OTHER, GPU)) == ["/dev/vfio/vfio", "/dev/vfio/13", "/dev/vfio/12"]

    def test_are_cdevs_with_the_iommu(self) -> None:
        found = answered(resource(node="cdev"), GPU, OTHER)
        assert paths(found) == ["/dev/iommu", "/dev/vfio/devices/vfio0", "/dev/vfio/devices/vfio1"]

    def test_of_one_group_have_its_node_once(self) -> None:
        nodes = {**NODES, str(OTHER): Nodes("/dev/vfio/12", None)}
        assert [node.path for node in answer(resource(), (GPU, OTHER), nodes).nodes] == [
            "/dev/vfio/vfio",
            "/dev/vfio/12",
        ]

    def test_are_nothing_else(self) -> None:
        found = answered(resource(), GPU)
        assert (found.environment, found.annotations, found.cdi) == ({}, {}, ())


class TestKubevirt:
    """The variables are called as KubeVirt does it in ResourceNameToEnvVar (pkg/util)."""

    @pytest.mark.parametrize(
        ("name", "suffix"),
        [
            ("nvidia.com/GA100_A100", "NVIDIA_COM_GA100_A100"),
            ("vendor1.com/dev1", "VENDOR1_COM_DEV1"),
            ("intel.com/qat-vf.4xxx", "INTEL_COM_QAT-VF_4XXX"),
            ("nvidia.com/GRID_T4-1Q", "NVIDIA_COM_GRID_T4-1Q"),
        ],
    )
    def test_a_variable_is_called_by_the_resource(self, name: str, suffix: str) -> None:
        kubevirt = resource(name, consumer="kubevirt")
        assert answered(kubevirt, GPU).environment == {f"PCI_RESOURCE_{suffix}": str(GPU)}
        assert answered(kubevirt, MDEV).environment == {f"MDEV_PCI_RESOURCE_{suffix}": str(MDEV)}

    def test_the_devices_are_listed_by_position_and_without_companions(self) -> None:
        for order in ((GPU, OTHER), (OTHER, GPU)):
            (value,) = answered(resource(consumer="kubevirt"), *order).environment.values()
            assert value == ",".join(order)

    def test_the_nodes_are_the_control_node_and_those_of_groups(self) -> None:
        assert paths(answered(resource(consumer="kubevirt"), GPU)) == ["/dev/vfio/vfio", "/dev/vfio/12"]


class TestKata:
    def test_names_cdi_devices_and_no_node(self) -> None:
        found = answered(resource(consumer="kata", node="cdev"), GPU, OTHER)
        assert found.cdi == (f"{NAME}=0000-41-00.0", f"{NAME}=0000-c1-00.0")
        assert (found.nodes, found.environment, found.annotations) == ((), {}, {})

    def test_of_an_older_kubelet_names_them_in_an_annotation(self) -> None:
        found = answered(resource(consumer="kata", cdi="annotation"), GPU, OTHER)
        names = f"{NAME}=0000-41-00.0,{NAME}=0000-c1-00.0"
        assert found.annotations == {"cdi.k8s.io/vfioctl_nvidia.com-GA100_A100": names}
        assert found.cdi == ()

    @pytest.mark.parametrize(
        "name", [NAME, f"{'d' * 60}.example.com/{'x' * 40}", f"a.b/{'x.' * 30}y", f"a{'-' * 60}b/c"]
    )
    def test_the_key_of_an_annotation_is_one_that_kubernetes_takes(self, name: str) -> None:
        """A prefix that is a DNS subdomain, and a name of at most 63 characters; CDI's plugin part may have dots."""
        (key,) = answered(resource(name, consumer="kata", cdi="annotation"), GPU).annotations
        prefix, _, rest = key.partition("/")
        assert prefix == "cdi.k8s.io"
        assert len(rest) <= 63
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", rest)


class TestANodeThatIsMissing:
    @pytest.mark.parametrize("consumer", ["devices", "kubevirt", "kata"])
    def test_is_refused_with_the_next_command(self, consumer: str) -> None:
        with pytest.raises(HostError, match=f"^{MDEV} has no cdev node of VFIO$") as refusal:
            answered(resource(consumer=consumer, node="cdev"), GPU, MDEV)
        assert refusal.value.next_command == "vfioctl vgpu list"

    def test_of_a_function_that_is_not_on_vfio(self) -> None:
        with pytest.raises(HostError, match="has no group node") as refusal:
            answer(resource(), (GPU,), {})
        assert refusal.value.next_command == f"vfioctl show {GPU}"


@pytest.mark.parametrize("node", ["group", "cdev"])
@pytest.mark.parametrize("consumer", ["devices", "kubevirt"])
def test_each_device_has_exactly_one_node(consumer: str, node: str) -> None:
    found = paths(answered(resource(consumer=consumer, node=node), GPU, OTHER))
    of_gpu = {path for path in found if path in NODES[str(GPU)]}
    assert len(of_gpu) == 1
    assert len(found) == len(set(found)) == 3


def test_a_node_may_be_read_and_written() -> None:
    assert NodeSpec("/dev/vfio/12") == ("/dev/vfio/12", "rw")
