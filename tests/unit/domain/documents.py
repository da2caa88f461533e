"""A domain with which nothing is wrong, and others made of it by replacing some text."""

from __future__ import annotations

GOOD = """\
<domain type='kvm'>
  <name>ml1</name>
  <memory unit='GiB'>8</memory>
  <memoryBacking>
    <hugepages><page size='1' unit='GiB' nodeset='0-1'/></hugepages>
    <nosharepages/>
    <allocation mode='immediate'/>
  </memoryBacking>
  <vcpu placement='static'>4</vcpu>
  <iothreads>1</iothreads>
  <cputune>
    <vcpupin vcpu='0' cpuset='2'/>
    <vcpupin vcpu='1' cpuset='3'/>
    <vcpupin vcpu='2' cpuset='34'/>
    <vcpupin vcpu='3' cpuset='35'/>
    <emulatorpin cpuset='0-1'/>
    <iothreadpin iothread='1' cpuset='0-1'/>
  </cputune>
  <numatune>
    <memory mode='strict' nodeset='0-1'/>
    <memnode cellid='0' mode='strict' nodeset='0'/>
    <memnode cellid='1' mode='strict' nodeset='1'/>
  </numatune>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <features>
    <acpi/>
    <hyperv mode='custom'><vendor_id state='on' value='GenuineIntel'/></hyperv>
  </features>
  <cpu mode='host-passthrough'>
    <topology sockets='2' dies='1' cores='1' threads='2'/>
    <cache mode='passthrough'/>
    <maxphysaddr mode='passthrough' limit='46'/>
    <numa>
      <cell id='0' cpus='0-1' memory='4' unit='GiB'>
        <distances><sibling id='0' value='10'/><sibling id='1' value='21'/></distances>
      </cell>
      <cell id='1' cpus='2-3' memory='4' unit='GiB'>
        <distances><sibling id='0' value='21'/><sibling id='1' value='10'/></distances>
      </cell>
    </numa>
  </cpu>
  <devices>
    <controller type='pci' index='0' model='pcie-root'><pcihole64 unit='GiB'>512</pcihole64></controller>
    <controller type='pci' index='1' model='pcie-expander-bus'>
      <model name='pxb-pcie'/>
      <target busNr='250'><node>0</node></target>
      <address type='pci' domain='0x0000' bus='0x00' slot='0x02' function='0x0'/>
    </controller>
    <controller type='pci' index='2' model='pcie-root-port'>
      <target chassis='2' port='0'/>
      <address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>
    </controller>
    <controller type='pci' index='3' model='pcie-root-port'>
      <target chassis='3' port='1'/>
      <address type='pci' domain='0x0000' bus='0x01' slot='0x01' function='0x0'/>
    </controller>
    <hostdev mode='subsystem' type='pci' managed='no'>
      <driver name='vfio'/>
      <source><address domain='0x0000' bus='0x1b' slot='0x00' function='0x0'/></source>
      <rom bar='off'/>
      <alias name='ua-gpu0'/>
      <address type='pci' domain='0x0000' bus='0x02' slot='0x00' function='0x0' multifunction='on'/>
    </hostdev>
    <hostdev mode='subsystem' type='pci' managed='no'>
      <source><address domain='0x0000' bus='0x1b' slot='0x00' function='0x1'/></source>
      <address type='pci' domain='0x0000' bus='0x02' slot='0x00' function='0x1'/>
    </hostdev>
    <hostdev mode='subsystem' type='mdev' model='vfio-pci' display='on' ramfb='on'>
      <source><address uuid='4e8c5df7-c4fa-4719-904f-5579cd5ac35f'/></source>
      <address type='pci' domain='0x0000' bus='0x03' slot='0x00' function='0x0'/>
    </hostdev>
    <graphics type='vnc'/>
    <memballoon model='none'/>
  </devices>
</domain>
"""
IOMMU = "<iommu model='intel'><driver intremap='on' caching_mode='on' iotlb='on'/></iommu><memballoon"
WITH_IOMMU = (("<memballoon", IOMMU), ("<acpi/>", "<acpi/><ioapic driver='qemu'/>"))
"""What adds a vIOMMU as it should be."""


def changed(*replaced: tuple[str, str], text: str = GOOD) -> str:
    """The document with the first occurrence of each text replaced."""
    for old, new in replaced:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text
