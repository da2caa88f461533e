"""A running domain on a simulated host: libvirt's test driver has it, and /proc its QEMU."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts.machines import copy, original
from vfioctl.domain.run.verify.devices import devices_given
from vfioctl.kernel.recorded.tree import Node, Tree

UUID, MDEV = "4e8c5df7-c4fa-4719-904f-5579cd5ac35f", "7e8c5df7-c4fa-4719-904f-5579cd5ac35f"
PID = 4242
GPU = "0000:1b:00.0"
GIB = 1 << 30
DOMAIN = f"""<domain type='kvm'><name>ml1</name><uuid>{UUID}</uuid>
  <memory unit='GiB'>8</memory>
  <memoryBacking><hugepages><page size='1' unit='GiB' nodeset='0-1'/></hugepages>
    <allocation mode='immediate'/></memoryBacking>
  <vcpu placement='static'>4</vcpu><iothreads>1</iothreads>
  <cputune><vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='1' cpuset='97'/><vcpupin vcpu='2' cpuset='49'/>
    <vcpupin vcpu='3' cpuset='144-145,^144'/><emulatorpin cpuset='0,48'/><iothreadpin iothread='1' cpuset='0'/>
  </cputune>
  <numatune><memory mode='strict' nodeset='0-1'/><memnode cellid='0' mode='strict' nodeset='0'/>
    <memnode cellid='1' mode='strict' nodeset='1'/></numatune>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <cpu><numa><cell id='0' cpus='0-1' memory='4' unit='GiB'/><cell id='1' cpus='2-3' memory='4' unit='GiB'/></numa></cpu>
  <devices>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='1' model='pcie-expander-bus'><target busNr='252'><node>1</node></target></controller>
    <controller type='pci' index='2' model='pcie-root-port'>
      <address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/></controller>
    <hostdev mode='subsystem' type='pci' managed='no'>
      <source><address domain='0x0000' bus='0x1b' slot='0x00' function='0x0'/></source>
      <address type='pci' domain='0x0000' bus='0x02' slot='0x00' function='0x0'/></hostdev>
    <hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{MDEV}'/></source></hostdev>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
  </devices></domain>"""


@dataclass
class Process:
    """What /proc shows of a QEMU process. Threads: name and CPUs, by id."""

    arguments: list[str] = field(
        default_factory=lambda: [
            "/usr/bin/qemu-system-x86_64",
            *("-name", "guest=ml1,debug-threads=on", "-uuid", UUID),
            *("-device", "pxb-pcie,bus_nr=252,id=pci.1,numa_node=1,bus=pcie.0,addr=0x1"),
            *("-device", '{"driver":"pcie-root-port","port":0,"chassis":2,"id":"pci.2","bus":"pci.1","addr":"0x0"}'),
            *("-device", '{"driver":"vfio-pci","host":"0000:1b:00.0","id":"hostdev0","bus":"pci.2","addr":"0x0"}'),
            *("-device", f"vfio-pci,id=hostdev1,sysfsdev=/sys/bus/mdev/devices/{MDEV},bus=pci.3,addr=0x0"),
        ]
    )
    threads: dict[int, tuple[str, str]] = field(
        default_factory=lambda: {
            PID: ("qemu-system-x86", "0,48"),
            PID + 1: ("IO iothread1", "0"),
            PID + 2: ("worker", "0"),
            PID + 3: ("vhost-4242", "97"),
            PID + 4: ("CPU 0/KVM", "1"),
            PID + 5: ("CPU 1/KVM", "97"),
            PID + 6: ("CPU 2/KVM", "49"),
            PID + 7: ("CPU 3/KVM", "145"),
        }
    )
    memory: list[tuple[str, int, str]] = field(
        default_factory=lambda: [
            ("default file=/usr/bin/qemu-system-x86_64 mapped=900 N1=900 kernelpagesize_kB=4", 32 << 20, "r-xp"),
            (_on("bind:0", 0), 4 * GIB, "rw-p"),
            (_on("bind:1", 1), 4 * GIB, "rw-p"),
            ("default heap anon=9000 N0=4000 N1=5000 kernelpagesize_kB=4", 64 << 20, "rw-p"),
        ]
    )
    user: int = 64055
    name: str = "qemu-system-x86"
    allowed_nodes: str = "0-1"

    def put(self, tree: Tree, pid: int = PID) -> None:
        """Write it into a host's /proc."""
        home = f"/proc/{pid}"
        tree.put(f"{home}/comm", self.name)
        tree.put(f"{home}/cmdline", "\0".join(self.arguments))
        tree.put(f"{home}/status", self._status(self.name, "0-191"))
        for task, (name, cpus) in self.threads.items():
            tree.put(f"{home}/task/{task}/status", self._status(name, cpus))
        self._open_groups(tree, home)
        policies, places, start = [], [], 0x7F0000000000
        for says, size, rights in self.memory:
            policies.append(f"{start:x} {says}")
            places.append(f"{start:x}-{start + size:x} {rights} 00000000 00:00 0")
            start += size
        tree.put(f"{home}/numa_maps", "\n".join(policies))
        tree.put(f"{home}/maps", "\n".join(places))

    def _open_groups(self, tree: Tree, home: str) -> None:
        """As QEMU does with the devices of its command line."""
        for number, address in enumerate(devices_given(self.arguments)):
            if link := tree.links.get(tree.resolve(f"/sys/bus/pci/devices/{address}") + "/iommu_group"):
                group = link.rpartition("/")[2]
                tree.put_link(f"{home}/fd/{30 + number}", f"/dev/vfio/{group}")
                tree.put_node(f"/dev/vfio/{group}", Node("c", 511, int(group)))

    def _status(self, name: str, cpus: str) -> str:
        users = "\t".join([str(self.user)] * 4)
        return f"Name:\t{name}\nUid:\t{users}\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{self.allowed_nodes}"


def _on(policy: str, node: int) -> str:
    file = f"file=/dev/hugepages/libvirt/qemu/1-ml1/qemu_back_mem.ram-node{node}.AbC\\040(deleted)"
    return f"{policy} {file} huge dirty=4 N{node}=4 kernelpagesize_kB=1048576"


def host(*processes: Process) -> Tree:
    """The server hgx8 with these processes, which have the ids 4242, 5242, ..."""
    tree = copy(original("hgx8"))
    tree.put("/proc/1/comm", "systemd")
    tree.properties["user:64055"] = {"name": "libvirt-qemu"}
    tree.properties["user:1000"] = {"name": "mallory"}
    for number, each in enumerate(processes):
        each.put(tree, PID + 1000 * number)
    return tree


def libvirt(folder: Path, domain: str = DOMAIN) -> str:
    """The URI of a test driver in which the domain runs."""
    node = folder / "node.xml"
    node.write_text(f"<node>{domain}</node>")
    return f"test://{node}"
