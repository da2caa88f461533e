# ruff: noqa: E501 - a document is a line
"""The rules on domains: each finds what is wrong, and nothing where nothing is."""

from __future__ import annotations

import pytest

from tests.unit.domain.documents import GOOD, WITH_IOMMU, changed
from vfioctl.domain.check.rules.check import MOST, RULES, check
from vfioctl.domain.document.xml import parse
from vfioctl.domain.model.finding import Finding, Severity

ERROR, WARNING = Severity.ERROR, Severity.WARNING
Replaced = tuple[tuple[str, str], ...]
CELLS = GOOD[GOOD.index("    <numa>") : GOOD.index("  </cpu>")]
NUMATUNE = GOOD[GOOD.index("  <numatune>") : GOOD.index("  <os>")]
PAGES = "<hugepages><page size='1' unit='GiB' nodeset='0-1'/></hugepages>"
SWITCH = "<controller type='pci' index='4' model='pcie-switch-upstream-port'/>"
SNP = "<launchSecurity type='sev-snp'><policy>0x30000</policy></launchSecurity>"
MDEV = "<address uuid='4e8c5df7-c4fa-4719-904f-5579cd5ac35f'/>"
AUDIO = "<address domain='0x0000' bus='0x1b' slot='0x00' function='0x1'/>"
GPU_AT = "bus='0x02' slot='0x00' function='0x0' multifunction='on'"
AUDIO_AT = "bus='0x02' slot='0x00' function='0x1'"
END, DEVICES_END = "</domain>", "  </devices>"
QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
VCPU, MAXIMUM = "<vcpu ", "<maxMemory{} unit='GiB'>{}</maxMemory><vcpu "
THREAD = "<iothread id='1' threads_pool_min='4'/>"
BOOT = ("<rom bar='off'/>", "<boot order='1'/>")
PCI = GOOD[GOOD.index("    <controller type='pci' index='0'") : GOOD.index("    <memballoon")]
PCI_ROOTS = "<controller type='pci' index='0' model='pci-root'/><controller type='pci' index='1' model='pci-root'/>"
S390_DISK = (
    "<disk><target dev='vda'/>"
    "<address type='pci' bus='0x00' slot='0x01' function='0x1'><zpci uid='0x1'/></address></disk>"
)
NO_PC = (
    (GOOD[GOOD.index("    <hyperv") : GOOD.index("  </features>")], ""),
    ("<maxphysaddr mode='passthrough' limit='46'/>", ""),
    ("<cache mode='passthrough'/>", ""),
)
ARM = (("arch='x86_64' machine='q35'", "arch='aarch64' machine='virt'"), ("<pcihole64 unit='GiB'>512</pcihole64>", ""))
DIMM = (
    "<memory model='dimm'><target><size unit='GiB'>1</size><node>{}</node></target><address type='dimm' base='{}'/>"
    "</memory></devices>"
)
NATIVE = "<driver cache='none' io='native' iothread='1'/><source file='/a.img'/><target dev='vda' bus='virtio'/>"
PLAIN = "<source file='/b.img'/><target dev='vdb' bus='virtio'/>"
DISK = ("<memballoon", f"<disk type='file'>{NATIVE}</disk><disk type='file'>{PLAIN}</disk><memballoon")
"""Two disks with which nothing is wrong."""
CACHE = "<cachetune vcpus='{}'><cache id='0' level='3' type='both' size='3' unit='MiB'/></cachetune>"
BANDWIDTH = "<memorytune vcpus='{}'><node id='0' bandwidth='60'/></memorytune>"
VMX = "<feature policy='require' name='vmx'/>"
RNG = "<rng model='virtio'><backend model='builtin'/></rng>"
MAC = "<interface><mac address='{}'/></interface>"
INTERFACES = (
    "<interface/>",
    "<interface type='user'/>",
    "<interface type='ethernet'/>",
    "<interface type='network'><source network='default'/></interface>",
    "<interface type='bridge'><source bridge='br0'/></interface>",
    "<interface type='direct'><source dev='eth0'/></interface>",
    "<interface type='vhostuser'><source type='unix' path='/a' mode='client'/><model type='virtio'/></interface>",
    "<interface type='server'><source port='1'/></interface>",
    "<interface><mac/></interface>",
    *(MAC.format(each) for each in ("52:54:00:0:0:1", "52:54:00:AB:cd:ef ")),
)
HOSTDEV_NIC = "<interface type='hostdev'><source><address type='pci' bus='0x18'/></source></interface>"
LINKS = (
    "<interconnects><latency initiator='0' target='1' type='access' value='5'/>"
    "<bandwidth initiator='1' target='1' type='access' value='204800' unit='KiB'/></interconnects>"
)
READ_ONLY = (
    "<filesystem type='mount'><driver type='virtiofs'/><source dir='/a'/><target dir='a'/><readonly/></filesystem>"
)
MAPPED = "<driver name='qemu'><iothreads><iothread id='1'/></iothreads></driver><target dev='vda' bus='virtio'/>"
SHARED = ("<nosharepages/>", "<access mode='shared'/>")


MANY = (">4</vcpu>", ">288</vcpu>")


def tuned(*elements: str) -> tuple[str, str]:
    """What adds to <cputune>."""
    return "</cputune>", "".join(elements) + "</cputune>"


def device(*elements: str) -> tuple[str, str]:
    """What adds devices."""
    return "<memballoon", "".join(elements) + "<memballoon"


def hyperv(*elements: str) -> tuple[str, str]:
    """What adds to <hyperv>."""
    return "</hyperv>", "".join(elements) + "</hyperv>"


VPINDEX, SYNIC = "<vpindex state='on'/>", "<synic state='on'/>"
HYPERV_PANIC, VIDEO = "<panic model='hyperv'/>", "<video><model type='virtio'/></video>"
SMM_OFF = ("<acpi/>", "<acpi/><smm state='off'/>")
SECURE = "<firmware><feature enabled='yes' name='secure-boot'/></firmware>"
VSOCK = "<vsock model='virtio'><cid {}/></vsock>"
NO_USB, XHCI = "<controller type='usb' model='none'/>", "<controller type='usb' index='1' model='qemu-xhci'/>"
TPM, PROXY = "<tpm model='tpm-crb'/>", "<tpm model='spapr-tpm-proxy'/>"
ESB, ITCO = "<watchdog model='i6300esb' action='reset'/>", "<watchdog model='itco' action='reset'/>"
SERIAL = "<serial type='pty'><target type='isa-serial' port='0'/></serial>"
VIRTIOFS = "<filesystem><driver type='virtiofs'/></filesystem>"


def of_a_vcpu(attributes: str) -> tuple[str, str]:
    """What says of a vCPU whether it is on."""
    return "<iothreads>", f"<vcpus><vcpu {attributes}/></vcpus><iothreads>"


WRONG: tuple[tuple[str, Severity, str, Replaced], ...] = (
    ("domain-name", ERROR, "no name", (("<name>ml1</name>", ""),)),
    ("domain-name", ERROR, "a /", (("<name>ml1", "<name>a/b"),)),
    ("domain-type", ERROR, "unknown", (("type='kvm'", "type='kvmm'"),)),
    ("domain-type", ERROR, "Linux", (("type='kvm'", "type='hvf'"),)),
    ("domain-type", WARNING, "only domains of QEMU", (("type='kvm'", "type='xen'"),)),
    ("domain-uuid", ERROR, "'hello' is no UUID", (("<memory ", "<uuid>hello</uuid><memory "),)),
    ("domain-uuid", ERROR, "no UUID", (("<memory ", "<hwuuid>4e8c5df7</hwuuid><memory "),)),
    ("domain-machine", ERROR, "no <os>", (("<os><type arch='x86_64' machine='q35'>hvm</type></os>", ""),)),
    ("domain-machine", ERROR, "with a <type>", (("<type arch='x86_64' machine='q35'>hvm</type>", ""),)),
    ("domain-machine", WARNING, "i440fx", ((" machine='q35'", ""),)),
    ("domain-part-twice", ERROR, "two <vcpu>", (("<iothreads>", "<vcpu>2</vcpu><iothreads>"),)),
    ("name-unknown", ERROR, "<hugepage>", (("<hugepages>", "<hugepage>"), ("</hugepages>", "</hugepage>"))),
    ("name-unknown", ERROR, "cpusets=", (("cpuset='2'", "cpusets='2'"),)),
    ("name-unknown", ERROR, "<hostdevice>", (("<graphics type='vnc'/>", "<hostdevice/><graphics type='vnc'/>"),)),
    ("name-unknown", ERROR, "fonction=", ((AUDIO, AUDIO.replace("function", "fonction")),)),
    ("name-unknown", ERROR, "<adress>", ((AUDIO, AUDIO + "<adress/>"),)),
    ("name-unknown", ERROR, "domian=", (("domain='0x0000' bus='0x03'", "domian='0x0000' bus='0x03'"),)),
    ("name-unknown", ERROR, "slott=", (("bus='0x00' slot='0x02'", "bus='0x00' slott='0x02'"),)),
    ("name-unknown", ERROR, "awbits=", (*WITH_IOMMU, ("iotlb='on'", "awbits='48'"))),
    ("name-unknown", ERROR, "<drivers>", (*WITH_IOMMU, ("<driver intremap", "<drivers/><driver intremap"))),
    ("name-unknown", ERROR, "<siblings>", (("<sibling id='1'", "<siblings/><sibling id='1'"),)),
    ("name-unknown", ERROR, "valu=", (("value='21'", "valu='21'"),)),
    ("name-unknown", ERROR, "<reducedPhysBit>", ((END, SNP.replace("</policy>", "</policy><reducedPhysBit/>") + END),)),
    (
        "name-unknown",
        ERROR,
        "threads_pool_min=",
        (("<iothreads>1</iothreads>", f"<iothreadids>{THREAD}</iothreadids>"),),
    ),
    (
        "name-unknown",
        ERROR,
        "priorty=",
        (("</cputune>", "<vcpusched vcpus='0' scheduler='rr' priorty='1'/></cputune>"),),
    ),
    ("name-unknown", ERROR, "<ioapick> here, and refuses", (("<acpi/>", "<acpi/><ioapick driver='kvm'/>"),)),
    ("name-unknown", ERROR, "<hiden>", (("<acpi/>", "<acpi/><kvm><hiden state='on'/></kvm>"),)),
    ("name-unknown", ERROR, "<vendorid>", (("<vendor_id state='on' value='GenuineIntel'/>", "<vendorid/>"),)),
    ("name-unknown", WARNING, "<brand-new>", (("<acpi/>", "<acpi/><brand-new/>"),)),
    ("name-unknown", WARNING, "<gpus>", (("<devices>", "<gpus/><devices>"),)),
    ("memory-missing", ERROR, "no <memory>", (("<memory unit='GiB'>8</memory>", ""), (CELLS, ""))),
    ("memory-size", ERROR, "'8 GiBs'", (("<memory unit='GiB'>", "<memory unit='GiBs'>"),)),
    ("memory-size", ERROR, "no memory=", ((" memory='4'", ""),)),
    ("memory-size", ERROR, "no size", ((" memory='4'", " memory='four'"),)),
    ("memory-zero", ERROR, "no memory at all", ((">8</memory>", ">0</memory>"), (CELLS, ""))),
    ("memory-too-large", ERROR, "4 PiB", (("<memory unit='GiB'>8<", "<memory unit='PiB'>8<"),)),
    ("memory-sum", WARNING, "the cells have 8 GiB", ((">8</memory>", ">9</memory>"),)),
    (
        "memory-current",
        WARNING,
        "more than",
        ((CELLS, ""), (">8</memory>", ">8</memory><currentMemory unit='GiB'>9</currentMemory>")),
    ),
    ("memory-backing", ERROR, "mode='later'", (("mode='immediate'", "mode='later'"),)),
    ("memory-access", ERROR, "memAccess='own'", (("<cell id='0'", "<cell id='0' memAccess='own'"),)),
    ("memory-maximum", ERROR, "2 GiB, less than the 8 GiB", ((VCPU, MAXIMUM.format(" slots='4'", 2)),)),
    ("memory-maximum", WARNING, "before 9.5", ((VCPU, MAXIMUM.format("", 9)),)),
    ("memory-maximum", ERROR, "no number", ((VCPU, MAXIMUM.format(" slots='some'", 9)),)),
    ("memory-device", ERROR, "no cell 7", ((DEVICES_END, DIMM.format(7, "0x100000000")),)),
    ("memory-device", ERROR, "without <maxMemory>", ((DEVICES_END, DIMM.format(0, "0x100000000")),)),
    (
        "memory-device",
        ERROR,
        "without NUMA cells",
        ((CELLS, ""), ("<vcpu ", "<maxMemory slots='2' unit='GiB'>9</maxMemory><vcpu ")),
    ),
    (
        "memory-device-address",
        ERROR,
        "0x110000000",
        (("</devices>", DIMM.format(0, "0x100000000")), ("</devices>", DIMM.format(1, "0x110000000"))),
    ),
    ("memory-locked", WARNING, "hard limit", (("<nosharepages/>", "<locked/>"),)),
    (
        "memory-hard-limit",
        ERROR,
        "VFIO locks all 8 GiB",
        (("<memoryBacking>", "<memtune><hard_limit unit='GiB'>6</hard_limit></memtune><memoryBacking>"),),
    ),
    (
        "memory-hard-limit",
        WARNING,
        "little",
        (("<memoryBacking>", "<memtune><hard_limit unit='GiB'>8</hard_limit></memtune><memoryBacking>"),),
    ),
    (
        "memory-hard-limit",
        ERROR,
        "for each of 2 devices",
        (*WITH_IOMMU, ("<memoryBacking>", "<memtune><hard_limit unit='GiB'>15</hard_limit></memtune><memoryBacking>")),
    ),
    (
        "memory-hard-limit",
        WARNING,
        "for each of 3 devices",  # of which one is mediated, and may lock less
        (*WITH_IOMMU, ("<memoryBacking>", "<memtune><hard_limit unit='GiB'>17</hard_limit></memtune><memoryBacking>")),
    ),
    (
        "memory-hard-limit",
        WARNING,
        "little",
        (
            *WITH_IOMMU,
            ("<devices>", "<iommufd enabled='yes'/><devices>"),
            ("<memoryBacking>", "<memtune><hard_limit unit='GiB'>8</hard_limit></memtune><memoryBacking>"),
        ),
    ),
    ("hugepage-size", ERROR, "5 MiB", (("size='1' unit='GiB'", "size='5' unit='MiB'"),)),
    ("hugepage-size", ERROR, "no size", (("<page size='1' unit='GiB'", "<page"),)),
    (
        "hugepage-size",
        ERROR,
        "no CPU",
        (("arch='x86_64' machine='q35'", "arch='aarch64' machine='virt'"), ("size='1' unit", "size='3' unit")),
    ),
    ("hugepage-cell", ERROR, "no cell 2-5", (("nodeset='0-1'/></hugepages>", "nodeset='0-5'/></hugepages>"),)),
    ("hugepage-cell", ERROR, "no list", (("nodeset='0-1'/></hugepages>", "nodeset='all'/></hugepages>"),)),
    (
        "hugepage-clash",
        ERROR,
        "two page sizes",
        ((PAGES, "<hugepages><page size='1' unit='GiB'/><page size='2' unit='MiB'/></hugepages>"),),
    ),
    ("hugepage-clash", ERROR, "cell 1", (("</hugepages>", "<page size='2' unit='MiB' nodeset='1'/></hugepages>"),)),
    ("hugepage-fit", WARNING, "no multiple", (("memory='4' unit='GiB'", "memory='4000' unit='MiB'"),)),
    ("hugepage-backing", ERROR, "on demand", (("mode='immediate'", "mode='ondemand'"),)),
    ("hugepage-backing", ERROR, "anonymous", (("<nosharepages/>", "<source type='anonymous'/>"),)),
    ("vcpu-count", ERROR, "'four'", ((">4</vcpu>", ">four</vcpu>"),)),
    ("vcpu-count", ERROR, "'4 ' is no number", ((">4</vcpu>", ">4 </vcpu>"),)),
    ("vcpu-count", ERROR, "no vCPU", ((">4</vcpu>", ">0</vcpu>"),)),
    ("vcpu-count", ERROR, "5 of 4", (("'static'>4", "'static' current='5'>4"),)),
    ("vcpu-count", ERROR, "at the start", (("'static'>4", "'static' current='0'>4"),)),
    ("vcpu-count", ERROR, "no number", (("'static'>4", "'static' current='-1'>4"),)),
    ("vcpu-count", ERROR, "placement='some'", (("placement='static'", "placement='some'"),)),
    ("vcpu-each", ERROR, "cannot be plugged in", (of_a_vcpu("id='1' enabled='no' hotpluggable='no'"),)),
    ("vcpu-each", ERROR, "no vCPU 4", (of_a_vcpu("id='4' enabled='yes'"),)),
    ("vcpu-each", ERROR, "enabled='maybe'", (of_a_vcpu("id='1' enabled='maybe'"),)),
    ("cpu-model", ERROR, "mode='host-pasthrough'", (("mode='host-passthrough'", "mode='host-pasthrough'"),)),
    ("cpu-model", ERROR, "policy='required'", (("<topology", "<feature policy='required' name='topoext'/><topology"),)),
    ("cpu-model", ERROR, "vmx is named twice", (("<topology", f"{VMX}{VMX.replace('require', 'disable')}<topology"),)),
    (
        "cpu-model",
        ERROR,
        "migratable= with",
        (("<cpu mode='host-passthrough'", "<cpu mode='host-model' migratable='off'"),),
    ),
    ("cpu-architecture", ERROR, "aarch64 has no <cache>", ARM),
    ("cpu-architecture", ERROR, "aarch64 has no <vendor_id>", ARM),
    *(
        ("cpu-architecture", ERROR, f"no <{name}>", (*ARM, *NO_PC, ("<acpi/>", f"<acpi/>{given}")))
        for name, given in (
            ("hint-dedicated", "<kvm><hint-dedicated state='on'/></kvm>"),
            ("pv-ipi", "<kvm><pv-ipi state='off'/></kvm>"),
            ("hyperv", "<hyperv mode='passthrough'/>"),
            ("smm", "<smm state='off'/>"),
            ("apic", "<apic eoi='on'/>"),
            ("ioapic", "<ioapic driver='kvm'/>"),
        )
    ),
    *(
        ("word-unknown", ERROR, reason, replaced)
        for reason, replaced in (
            ("firmware='uefi'", (("<os>", "<os firmware='uefi'>"),)),
            ("firmware='none'", (("<os>", "<os firmware='none'>"),)),
            ("dev='disk'", (("<os>", "<os><boot dev='disk'/>"),)),
            ("<boot> has no dev=", (("<os>", "<os><boot/>"),)),
            ("'foo'", ((END, "<on_crash>foo</on_crash></domain>"),)),
            ("'pause'", ((END, "<on_reboot>pause</on_reboot></domain>"),)),
            ("offset='foo'", ((END, "<clock offset='foo'/></domain>"),)),
            ("name='foo'", ((END, "<clock><timer name='foo'/></clock></domain>"),)),
            ("<timer> has no name=", ((END, "<clock><timer/></clock></domain>"),)),
            ("model='foo'", (("<memballoon model='none'/>", "<memballoon model='foo'/>"),)),
            ("<memballoon> has no model=", (("<memballoon model='none'/>", "<memballoon/>"),)),
            ("device='foo'", (device("<disk device='foo'><target dev='vda'/></disk>"),)),
            ("bus='foo'", (device("<disk><target dev='vda' bus='foo'/></disk>"),)),
            ("model='foo'", (device(RNG.replace("builtin", "foo")),)),
        )
    ),
    *(
        ("part-missing", ERROR, reason, (device(given),))
        for reason, given in (
            ("no <target>", "<disk device='disk'><source file='/a'/></disk>"),
            ("no <target>", "<disk device='disk'><target bus='virtio'/></disk>"),
            ("needs one <backend>", "<rng model='virtio'/>"),
            ("needs one <backend>", RNG.replace("<backend model='builtin'/>", "<backend model='builtin'/>" * 2)),
            ("<source> with network=", "<interface type='network'/>"),
            ("<source> with bridge=", "<interface type='bridge'><source network='a'/></interface>"),
        )
    ),
    *(
        ("mac-address", ERROR, "is no MAC address", (device(MAC.format(each)),))
        for each in ("52:54:00:00:00:zz", "52:54:00:00:01", "53:54:00:00:00:01", " 52:54:00:00:00:01", "")
    ),
    ("feature-state", ERROR, "state='yes'", (("<acpi/>", "<acpi/><kvm><hidden state='yes'/></kvm>"),)),
    ("feature-state", ERROR, "state='yes'", (("<vendor_id state='on'", "<vendor_id state='yes'"),)),
    ("feature-state", ERROR, "state='1'", (("<acpi/>", "<acpi/><vmport state='1'/>"),)),
    ("vcpu-cpuset", ERROR, "names no CPUs", (("'static'>4", "'static' cpuset='2,^2'>4"),)),
    ("vcpu-many", ERROR, "need the machine q35", (("machine='q35'", "machine='pc'"), (">4</vcpu>", ">288</vcpu>"))),
    ("vcpu-many", WARNING, "10.10", (MANY,)),
    ("vcpu-many", ERROR, "extended", (*WITH_IOMMU, ("iotlb='on'", "eim='off'"), (">4</vcpu>", ">288</vcpu>"))),
    ("cpu-topology", ERROR, "has 8 CPUs", (("cores='1'", "cores='2'"),)),
    ("cpu-topology", ERROR, "no threads=", ((" threads='2'", ""),)),
    ("cpu-topology", ERROR, "above 0", (("cores='1'", "cores='0'"),)),
    ("cpu-topology", ERROR, "dies='2', and QEMU has", (*ARM, *NO_PC, ("dies='1' cores='1'", "dies='2' cores='1'"))),
    ("cpu-cache", ERROR, "takes no level", (("<cache mode", "<cache level='3' mode"),)),
    ("cpu-cache", ERROR, "needs level", (("<cache mode='passthrough'", "<cache mode='emulate'"),)),
    ("cpu-cache", ERROR, "unknown", (("<cache mode='passthrough'", "<cache mode='some'"),)),
    ("cpu-cache", ERROR, "with <cpu mode='host-model'>", (("mode='host-passthrough'", "mode='host-model'"),)),
    ("cpu-address-bits", ERROR, "takes no bits", (("limit='46'", "bits='46'"),)),
    (
        "cpu-address-bits",
        ERROR,
        "takes no limit",
        (("<maxphysaddr mode='passthrough'", "<maxphysaddr mode='emulate'"),),
    ),
    ("cpu-address-bits", WARNING, "before 9.2", (("passthrough' limit='46'", "emulate'"),)),
    ("cpu-address-bits", ERROR, "no width", (("limit='46'", "limit='20'"),)),
    ("cpu-address-bits", ERROR, "unknown", (("<maxphysaddr mode='passthrough'", "<maxphysaddr mode='some'"),)),
    ("cpu-address-bits", ERROR, "aarch64 has no", (("arch='x86_64' machine='q35'", "arch='aarch64' machine='virt'"),)),
    ("cpu-emulated", ERROR, "needs KVM", (("type='kvm'", "type='qemu'"),)),
    ("hyperv-vendor-id", ERROR, "13 characters", (("GenuineIntel", "GenuineIntel1"),)),
    ("hyperv-vendor-id", ERROR, "comma", (("GenuineIntel", "a,b"),)),
    ("hyperv-vendor-id", ERROR, "no value", ((" value='GenuineIntel'", ""),)),
    ("pin-cpuset", ERROR, "names no CPUs", (("cpuset='34'", "cpuset='3-4-'"),)),
    ("pin-cpuset", ERROR, "no cpuset=", (("<emulatorpin cpuset='0-1'/>", "<emulatorpin/>"),)),
    ("pin-vcpu", ERROR, "pinned twice", (("vcpu='1'", "vcpu='0'"),)),
    ("pin-vcpu", ERROR, "there is no vCPU 99", (("vcpu='3'", "vcpu='99'"),)),
    ("pin-vcpu", ERROR, "which vCPU", (("vcpupin vcpu='3'", "vcpupin"),)),
    ("pin-partial", WARNING, "vCPU 3 is not pinned", (("<vcpupin vcpu='3' cpuset='35'/>", ""),)),
    ("pin-emulator", ERROR, "two <emulatorpin>", (("</cputune>", "<emulatorpin cpuset='1'/></cputune>"),)),
    ("pin-iothread", ERROR, "no I/O thread 2", (("iothread='1'", "iothread='2'"),)),
    ("pin-iothread", ERROR, "pinned twice", (("</cputune>", "<iothreadpin iothread='1' cpuset='1'/></cputune>"),)),
    ("pin-shared", WARNING, "with vCPU 0", (("cpuset='3'", "cpuset='2'"),)),
    ("pin-shared", WARNING, "runs a vCPU", (("<emulatorpin cpuset='0-1'", "<emulatorpin cpuset='0-2'"),)),
    (
        "iothread-id",
        ERROR,
        "not unique",
        (("<iothreads>1</iothreads>", "<iothreadids><iothread id='1'/><iothread id='1'/></iothreadids>"),),
    ),
    ("iothread-id", ERROR, "'x'", (("<iothreads>1<", "<iothreads>x<"),)),
    ("scheduler", ERROR, "needs a priority", (("</cputune>", "<vcpusched vcpus='0' scheduler='fifo'/></cputune>"),)),
    ("scheduler", ERROR, "unknown", (("</cputune>", "<vcpusched vcpus='0' scheduler='soon'/></cputune>"),)),
    (
        "scheduler",
        ERROR,
        "two <vcpusched>",
        (("</cputune>", "<vcpusched vcpus='0' scheduler='idle'/><vcpusched vcpus='0-1' scheduler='idle'/></cputune>"),),
    ),
    (
        "scheduler",
        ERROR,
        "no I/O thread 3",
        (("</cputune>", "<iothreadsched iothreads='3' scheduler='idle'/></cputune>"),),
    ),
    ("scheduler", WARNING, "no vCPU 9", (("</cputune>", "<vcpusched vcpus='0,9' scheduler='idle'/></cputune>"),)),
    ("scheduler", ERROR, "names nothing", (("</cputune>", "<vcpusched scheduler='idle'/></cputune>"),)),
    ("cpu-quota", ERROR, "out of range", (("</cputune>", "<period>10</period></cputune>"),)),
    ("cpu-quota", ERROR, "'much'", (("</cputune>", "<quota>much</quota></cputune>"),)),
    ("cpu-shares", ERROR, "'262145' is out of range", (tuned("<shares>262145</shares>"),)),
    ("cpu-shares", ERROR, "'-5'", (tuned("<shares>-5</shares>"),)),
    ("cpu-shares", WARNING, "before 9.1", (tuned("<shares>1</shares>"),)),
    ("resource-group", ERROR, "vCPU 3 is in two", (tuned(CACHE.format("0-3"), CACHE.format("3")),)),
    ("resource-group", ERROR, "vCPU 0-3 is in two", (tuned(CACHE.format("0-3"), CACHE.format("0-3")),)),
    ("resource-group", ERROR, "vCPU 0-2 is in two", (tuned(CACHE.format("0-3"), BANDWIDTH.format("0-2")),)),
    ("resource-group", ERROR, "vCPU 0-3", (tuned(CACHE.format("0-1"), CACHE.format("2-3"), BANDWIDTH.format("0-3")),)),
    ("cell-id", ERROR, "id='5' of 2 cells", (("<cell id='1'", "<cell id='5'"),)),
    ("cell-id", ERROR, "two cells have the id 0", (("<cell id='1'", "<cell id='0'"),)),
    ("cell-id", ERROR, "no cells", ((CELLS, "<numa/>"),)),
    ("cell-cpus", ERROR, "in two cells", (("cpus='2-3'", "cpus='1-3'"),)),
    ("cell-cpus", ERROR, "no vCPU 4", (("cpus='2-3'", "cpus='2-4'"),)),
    ("cell-cpus", WARNING, "vCPU 3 is in no cell", (("cpus='2-3'", "cpus='2'"),)),
    ("cell-cpus", ERROR, "no list", (("cpus='2-3'", "cpus='two'"),)),
    ("cell-distance", ERROR, "no cell 2", (("<sibling id='1' value='21'/>", "<sibling id='2' value='21'/>"),)),
    (
        "cell-distance",
        ERROR,
        "'10' is no distance",
        (("<sibling id='1' value='21'/>", "<sibling id='1' value='10'/>"),),
    ),
    *(
        ("cell-interconnect", ERROR, reason, (("</numa>", f"<interconnects>{given}</interconnects></numa>"),))
        for reason, given in (
            ("target= names no cell: '2'", "<latency initiator='0' target='2' type='access' value='5'/>"),
            ("initiator= names no cell: '2'", "<bandwidth initiator='2' target='1' type='access' value='5'/>"),
            ("initiator= names no cell: ''", "<latency target='1' type='access' value='5'/>"),
        )
    ),
    (
        "cell-interconnect",
        ERROR,
        "without vCPUs",
        (("cpus='2-3' ", ""), ("</numa>", LINKS + "</numa>")),
    ),
    ("cell-distance", ERROR, "without a <sibling>", (("<distances>", "<distances/><distances>"),)),
    ("cell-distance", WARNING, "differs", (("<sibling id='1' value='21'/>", "<sibling id='1' value='31'/>"),)),
    ("cell-memory", WARNING, "no memory", (("memory='4'", "memory='0'"),)),
    ("numa-nodeset", ERROR, "names no node", (("nodeset='0-1'/>\n    <memnode", "nodeset='0,^0'/>\n    <memnode"),)),
    ("numa-nodeset", ERROR, "mode='firm'", (("cellid='0' mode='strict'", "cellid='0' mode='firm'"),)),
    ("numa-nodeset", ERROR, "two <numatune>", (("<os>", "<numatune/><os>"),)),
    ("numa-nodeset", ERROR, "no nodeset", ((" mode='strict' nodeset='1'", " mode='strict'"),)),
    (
        "numa-nodeset",
        WARNING,
        "ignored",
        ((NUMATUNE, "<numatune><memory placement='auto' nodeset='0,^0'/></numatune>"),),
    ),
    ("numa-placement", ERROR, "no nodeset", ((NUMATUNE, "<numatune><memory mode='strict'/></numatune>"),)),
    ("numa-placement", ERROR, "unknown", (("<memory mode='strict' ", "<memory placement='some' "),)),
    ("memnode", ERROR, "no cell 4", (("cellid='1'", "cellid='4'"),)),
    ("memnode", ERROR, "two memnodes", (("cellid='1'", "cellid='0'"),)),
    ("memnode", ERROR, "no cells", ((CELLS, ""),)),
    ("memnode", ERROR, "automatic", (("<memory mode='strict' nodeset='0-1'", "<memory placement='auto'"),)),
    ("memnode-restrictive", ERROR, "restrictive", (("cellid='0' mode='strict'", "cellid='0' mode='restrictive'"),)),
    (
        "memnode-missing",
        WARNING,
        "cell 1",
        (("<memory mode='strict' nodeset='0-1'/>", ""), ("<memnode cellid='1' mode='strict' nodeset='1'/>", "")),
    ),
    ("controller-index", ERROR, "the index 2", (("index='3'", "index='2'"),)),
    ("controller-index", ERROR, "'-1'", (("index='3'", "index='-1'"),)),
    ("controller-index", ERROR, "'256'", (("index='3'", "index='256'"),)),
    ("controller-model", ERROR, "no PCI controller model", (("model='pcie-expander-bus'", "model='pcie-expander'"),)),
    ("controller-model", ERROR, "is no pxb", (("name='pxb-pcie'", "name='pxb'"),)),
    ("controller-root", ERROR, "has a pcie-root", (("model='pcie-root'", "model='pci-root'"),)),
    ("controller-root", ERROR, "the index 9", (("index='0'", "index='9'"),)),
    ("controller-root", ERROR, "no address", (("<pcihole64", "<address type='pci'/><pcihole64"),)),
    ("controller-root", ERROR, "index 0 is that", (("index='3'", "index='0'"),)),
    ("controller-target", ERROR, "busNr='255'", (("busNr='250'", "busNr='255'"),)),
    ("controller-target", ERROR, "chassis='x'", (("chassis='2'", "chassis='x'"),)),
    ("controller-chassis", ERROR, "that of /domain/devices/controller[3]", (("chassis='3'", "chassis='0x2'"),)),
    ("controller-chassis", ERROR, "chassis 2 is also", (("chassis='2' port", "port"), ("chassis='3'", "chassis='2'"))),
    ("controller-place", ERROR, "on a pcie-root-port", (("bus='0x01' slot='0x01'", "bus='0x02' slot='0x00'"),)),
    ("controller-place", ERROR, "is on bus 7", (("bus='0x01' slot='0x01'", "bus='0x07' slot='0x01'"),)),
    (
        "controller-room",
        ERROR,
        "room for 240",
        ((DEVICES_END, "<controller type='pci' model='pcie-root-port'/>" * 241 + DEVICES_END),),
    ),
    ("expander-bus", ERROR, "no cell 2", (("<node>0</node>", "<node>2</node>"),)),
    ("expander-bus", ERROR, "has no pcie-expander-bus", (("machine='q35'", "machine='pc'"),)),
    ("expander-bus", ERROR, "has no pci-expander-bus", (("model='pcie-expander-bus'", "model='pci-expander-bus'"),)),
    ("expander-bus", WARNING, "sees no NUMA node", (("<node>0</node>", ""),)),
    (
        "expander-bus",
        ERROR,
        "only an expander bus",
        (("chassis='2' port='0'/>", "chassis='2'><node>0</node></target>"),),
    ),
    ("pci-hole", ERROR, "has no pcihole64", (("<target chassis='2' port='0'/>", "<pcihole64>1</pcihole64>"),)),
    ("pci-hole", ERROR, "no size", ((">512<", ">half<"),)),
    ("pci-hole", ERROR, "more than", ((">512<", ">51200000<"),)),
    ("pci-hole", ERROR, "needs 47 address bits, and the guest's CPU has 46", ((">512<", ">65536<"),)),
    ("pci-hole", ERROR, "has 40", (("passthrough' limit='46'", "emulate' bits='40'"), (">512<", ">1018<"))),
    ("pci-hole", ERROR, "above 900 GiB of", (("limit='46'", "limit='40'"), (">8</memory>", ">900</memory>"))),
    ("pci-hole", ERROR, "virt has no", (("arch='x86_64' machine='q35'", "arch='aarch64' machine='virt'"),)),
    (
        "bus-number",
        ERROR,
        "busNr 250",
        (
            (
                DEVICES_END,
                "<controller type='pci' index='9' model='pcie-expander-bus'><target busNr='250'/></controller></devices>",
            ),
        ),
    ),
    ("bus-space", ERROR, "needs 3 bus numbers from 254", (("busNr='250'", "busNr='254'"),)),
    (
        "bus-space",
        ERROR,
        "only 2 are free",
        (
            (
                DEVICES_END,
                "<controller type='pci' index='9' model='pcie-expander-bus'><target busNr='252'/></controller></devices>",
            ),
        ),
    ),
    ("bus-space", ERROR, "which libvirt chooses", ((" busNr='250'", ""),)),
    (
        "bus-space",
        ERROR,
        "on the root",
        (
            ("busNr='250'", "busNr='2'"),
            (DEVICES_END, "<controller type='pci' index='9' model='pcie-root-port'/>" * 3 + "</devices>"),
        ),
    ),
    ("address-range", ERROR, "slot='0x20'", (("bus='0x01' slot='0x01'", "bus='0x01' slot='0x20'"),)),
    ("address-range", ERROR, "function='0x8'", ((AUDIO, AUDIO.replace("0x1'", "0x8'")),)),
    ("address-range", ERROR, "bus='no'", ((AUDIO, AUDIO.replace("0x1b", "no")),)),
    ("address-domain", ERROR, "PCI domain 0x10000", (("domain='0x0000' bus='0x03'", "domain='0x10000' bus='0x03'"),)),
    ("address-range", ERROR, "domain='0x100000000'", ((AUDIO, AUDIO.replace("'0x0000'", "'0x100000000'")),)),
    ("address-domain", ERROR, "PCI domain 0x0001", (("domain='0x0000' bus='0x03'", "domain='0x0001' bus='0x03'"),)),
    (
        "address-twice",
        ERROR,
        "also that of /domain/devices/hostdev[1]",
        ((AUDIO_AT, AUDIO_AT.replace("0x1'", "0x0'")),),
    ),
    ("address-slot", ERROR, "which has only slot 0", (("bus='0x03' slot='0x00'", "bus='0x03' slot='0x01'"),)),
    (
        "address-slot",
        ERROR,
        "slot 0 of a pcie-to-pci-bridge",
        (
            (
                "model='pcie-root-port'>\n      <target chassis='3'",
                "model='pcie-to-pci-bridge'>\n      <target chassis='3'",
            ),
        ),
    ),
    (
        "address-place",
        ERROR,
        "straight into a pcie-expander-bus",
        (("bus='0x03' slot='0x00'", "bus='0x01' slot='0x03'"),),
    ),
    (
        "address-place",
        ERROR,
        "switch-upstream-port",
        ((DEVICES_END, SWITCH + DEVICES_END), ("bus='0x03' slot='0x00'", "bus='0x04' slot='0x00'")),
    ),
    (
        "address-built-in",
        ERROR,
        "0000:00:1f.2",
        (("bus='0x03' slot='0x00' function='0x0'", "bus='0x00' slot='0x1f' function='0x2'"),),
    ),
    ("address-multifunction", ERROR, "does not say so", ((" multifunction='on'", ""),)),
    ("address-multifunction", ERROR, "nothing is function 0", ((GPU_AT, "bus='0x02' slot='0x00' function='0x2'"),)),
    (
        "address-zpci",
        ERROR,
        "s390",
        (("function='0x1'/>\n    </hostdev>", "function='0x1'><zpci uid='0x1'/></address></hostdev>"),),
    ),
    ("address-multifunction", ERROR, "multifunction='yes'", (("multifunction='on'", "multifunction='yes'"),)),
    ("boot-order", ERROR, "order='0'", (("<rom bar='off'/>", "<boot order='0'/>"),)),
    ("boot-order", ERROR, "is no place", (("<rom bar='off'/>", "<boot/>"),)),
    (
        "boot-order",
        ERROR,
        "also that of /domain/devices/hostdev[1]",
        (BOOT, ("<graphics", "<disk><boot order='1'/></disk><graphics")),
    ),
    ("boot-order", ERROR, "both in <os>", (BOOT, ("</os>", "<boot dev='hd'/></os>"))),
    ("disk-target", ERROR, "target vda is also that of /domain/devices/disk[1]", (DISK, ("'vdb'", "'vda'"))),
    ("disk-target", ERROR, "target vda", (DISK, ("dev='vdb' bus='virtio'", "dev='vda' bus='sata'"))),
    ("disk-iothread", ERROR, "no I/O thread 3", (DISK, ("iothread='1'/><source", "iothread='3'/><source"))),
    ("disk-iothread", ERROR, "bus sata", (DISK, ("dev='vda' bus='virtio'", "dev='sda' bus='sata'"))),
    ("disk-iothread", ERROR, "vhostuser", (DISK, ("<disk type='file'", "<disk type='vhostuser'"))),
    ("disk-cache", ERROR, "with cache='writeback'", (DISK, ("cache='none'", "cache='writeback'"))),
    ("disk-cache", ERROR, "with no cache=", (DISK, ("cache='none'", ""))),
    ("disk-image", WARNING, "/a.img is also the image of /domain/devices/disk[1]", (DISK, ("/b.img", "/a.img"))),
    ("usb-none", ERROR, "USB is off", (device(NO_USB, XHCI),)),
    ("usb-none", ERROR, "USB is off", (device(XHCI, NO_USB),)),
    ("usb-none", ERROR, "USB is off", (device(NO_USB, NO_USB),)),
    ("usb-none", ERROR, "USB is off", (device(NO_USB, "<input type='tablet' bus='usb'/>"),)),
    ("usb-none", ERROR, "USB is off", (device(NO_USB, "<hub type='usb'/>"),)),
    ("usb-none", ERROR, "USB is off", (device(NO_USB, "<hostdev type='usb'><source/></hostdev>"),)),
    ("usb-none", ERROR, "USB is off", (DISK, device(NO_USB), ("dev='vdb' bus='virtio'", "dev='sdb' bus='usb'"))),
    ("tpm", ERROR, "a second", (device(TPM, TPM.replace("crb", "tis")),)),
    ("tpm", ERROR, "a second", (device(TPM, PROXY, PROXY),)),
    ("filesystem-readonly", WARNING, "before 11.0", (SHARED, device(READ_ONLY))),
    ("tpm", ERROR, "no TPM 1.2", (device("<tpm model='tpm-crb'><backend type='emulator' version='1.2'/></tpm>"),)),
    ("panic", ERROR, "of the model isa", (device("<panic/>", "<panic model='isa'/>"),)),
    ("panic", ERROR, "of the model hyperv", (device(HYPERV_PANIC, HYPERV_PANIC),)),
    ("video-none", ERROR, "beside another", (device("<video><model type='none'/></video>", VIDEO),)),
    ("vsock", ERROR, "a second", (device(VSOCK.format("auto='yes'"), VSOCK.format("auto='yes'")),)),
    ("vsock", ERROR, "guest CID 2", (device(VSOCK.format("auto='no' address='2'")),)),
    ("queue-count", WARNING, "queues='0'", (device("<interface type='user'><driver queues='0'/></interface>"),)),
    ("hyperv-needs", ERROR, "stimer needs synic and hypervclock", (hyperv("<stimer state='on'/>"),)),
    ("hyperv-needs", ERROR, "stimer needs hypervclock", (hyperv(VPINDEX, SYNIC, "<stimer state='on'/>"),)),
    ("hyperv-needs", ERROR, "synic needs vpindex", (hyperv(SYNIC),)),
    ("hyperv-needs", ERROR, "evmcs needs vapic", (hyperv("<vapic state='off'/>", "<evmcs state='on'/>"),)),
    ("watchdog", ERROR, "of the model itco", (device(ITCO, ITCO),)),
    ("watchdog", ERROR, "different actions", (device(ESB, ITCO.replace("reset", "none")),)),
    ("watchdog", WARNING, "before 9.1", (device(ESB, ESB),)),
    ("watchdog", WARNING, "before 9.1", (device(ESB, ITCO),)),
    ("serial-port", ERROR, "port 0 is also that of", (device(SERIAL, SERIAL),)),
    ("shared-memory", ERROR, "virtiofs needs", (device(VIRTIOFS),)),
    ("shared-memory", ERROR, "virtiofs needs", (device(VIRTIOFS), SHARED, ("<cell ", "<cell memAccess='private' "))),
    ("shared-memory", ERROR, "vhostuser", (device("<disk type='vhostuser'/>"),)),
    ("hostdev-type", ERROR, "mode='subsistem'", (("mode='subsystem'", "mode='subsistem'"),)),
    ("hostdev-type", ERROR, "type='pcie'", (("type='pci' managed", "type='pcie' managed"),)),
    ("hostdev-type", ERROR, "no <source>", ((f"<source>{AUDIO}</source>", ""),)),
    ("hostdev-type", ERROR, "LXC", (("mode='subsystem'", "mode='capabilities'"),)),
    ("hostdev-source", ERROR, "no <address>", ((AUDIO, ""),)),
    ("hostdev-source", ERROR, "no type of address", (device(HOSTDEV_NIC.replace("type='pci' ", "")),)),
    ("hostdev-source", ERROR, "no type of address", (device("<interface type='hostdev'><source/></interface>"),)),
    ("hostdev-source", ERROR, "no bus", (device(HOSTDEV_NIC.replace("bus='0x18'", "slot='0x18'")),)),
    ("hostdev-source", ERROR, "two addresses", ((AUDIO, AUDIO + AUDIO),)),
    ("hostdev-source", ERROR, "no bus", ((AUDIO, "<address slot='0x01'/>"),)),
    (
        "hostdev-address",
        ERROR,
        "no drive address",
        ((f"<address type='pci' domain='0x0000' {AUDIO_AT}", "<address type='drive'"),),
    ),
    ("hostdev-twice", ERROR, "/domain/devices/hostdev[1]", ((AUDIO, AUDIO.replace("0x1'", "0x0'")),)),
    ("hostdev-driver", ERROR, "no longer exists", (("<driver name='vfio'/>", "<driver name='kvm'/>"),)),
    ("hostdev-driver", ERROR, "unknown", (("<driver name='vfio'/>", "<driver name='vfio-pci'/>"),)),
    ("hostdev-driver", ERROR, "iommufd='maybe'", (("<driver name='vfio'/>", "<driver iommufd='maybe'/>"),)),
    ("hostdev-driver", ERROR, "writeFiltering", (("<source>", "<source writeFiltering='no'>"),)),
    ("hostdev-display", ERROR, "no <graphics>", (("<graphics type='vnc'/>", ""),)),
    ("hostdev-display", ERROR, "a second device", (("managed='no'", "managed='no' display='on' ramfb='on'"),)),
    ("hostdev-display", ERROR, "without display", ((" display='on'", ""),)),
    ("hostdev-attribute", ERROR, "rawio=", (("managed='no'", "managed='no' rawio='yes'"),)),
    ("hostdev-attribute", ERROR, "no model=", (("managed='no'", "managed='no' model='vfio-pci'"),)),
    (
        "hostdev-attribute",
        ERROR,
        "boot from a vhost",
        ((DEVICES_END, "<hostdev type='scsi_host'><source wwpn='naa.5'/><boot order='1'/></hostdev></devices>"),),
    ),
    (
        "hostdev-drive",
        ERROR,
        "also that of",
        (
            (
                DEVICES_END,
                "<disk><target dev='sda' bus='scsi'/></disk><hostdev type='scsi'><source/><address type='drive' controller='0' unit='0'/></hostdev></devices>",
            ),
        ),
    ),
    (
        "hostdev-interface",
        ERROR,
        "tap",
        ((DEVICES_END, "<interface type='hostdev'><backend tap='/dev/x'/></interface></devices>"),),
    ),
    ("hostdev-teaming", ERROR, "transient", (("<driver name='vfio'/>", "<teaming type='persistent'/>"),)),
    ("hostdev-managed", ERROR, "managed='maybe'", (("managed='no'", "managed='maybe'"),)),
    ("hostdev-rom", WARNING, "ignore", (("<rom bar='off'", "<rom enabled='no' bar='off'"),)),
    ("hostdev-rom", ERROR, "no absolute path", (("<rom bar='off'", "<rom file='vbios.rom'"),)),
    ("hostdev-rom", ERROR, "bar='none'", (("<rom bar='off'", "<rom bar='none'"),)),
    (
        "hostdev-rom",
        ERROR,
        "only PCI devices",
        ((DEVICES_END, "<disk><rom bar='on'/><address type='drive'/></disk></devices>"),),
    ),
    ("alias", WARNING, "begin with ua-", (("ua-gpu0", "gpu0"),)),
    ("alias", ERROR, "two devices", ((f"<source>{AUDIO}", f"<alias name='ua-gpu0'/><source>{AUDIO}"),)),
    ("mdev-model", ERROR, "has no model=", ((" model='vfio-pci'", ""),)),
    ("mdev-model", ERROR, "unknown", ((" model='vfio-pci'", " model='vfio'"),)),
    ("mdev-model", ERROR, "boot", ((f"<source>{MDEV}", f"<boot order='1'/><source>{MDEV}"),)),
    ("mdev-model", ERROR, "no display", ((" model='vfio-pci'", " model='vfio-ap'"),)),
    ("mdev-model", ERROR, "s390 only", ((" model='vfio-pci' display='on' ramfb='on'", " model='vfio-ccw'"),)),
    ("mdev-uuid", ERROR, "no uuid", ((MDEV, "<address/>"),)),
    ("mdev-uuid", ERROR, "no UUID", ((MDEV, "<address uuid='4e8c5df7'/>"),)),
    (
        "mdev-address",
        ERROR,
        "no drive address",
        (("<address type='pci' domain='0x0000' bus='0x03'", "<address type='drive'"),),
    ),
    ("mdev-managed", WARNING, "ignores", (("type='mdev'", "type='mdev' managed='yes'"),)),
    ("iommu-model", ERROR, "unknown", (("<memballoon", "<iommu model='some'/><memballoon"),)),
    ("iommu-model", ERROR, "two <iommu>", (*WITH_IOMMU, ("<memballoon", "<iommu model='intel'/><memballoon"))),
    ("iommu-model", ERROR, "no intel IOMMU", (*WITH_IOMMU, ("machine='q35'", "machine='pc'"))),
    ("iommu-model", ERROR, "no SMMUv3", (("<memballoon", "<iommu model='smmuv3'/><memballoon"),)),
    (
        "iommu-model",
        ERROR,
        "no virtio IOMMU",
        (("<memballoon", "<iommu model='virtio'/><memballoon"), ("machine='q35'", "machine='pc'")),
    ),
    (
        "iommu-address",
        ERROR,
        "has no address",
        (*WITH_IOMMU, ("<driver intremap", "<address type='pci'/><driver intremap")),
    ),
    (
        "iommu-address",
        ERROR,
        "has a PCI address",
        (("<memballoon", "<iommu model='virtio'><address type='drive'/></iommu><memballoon"),),
    ),
    (
        "iommu-address",
        ERROR,
        "bus 0",
        (("<memballoon", "<iommu model='virtio'><address type='pci' bus='0x03' slot='0x00'/></iommu><memballoon"),),
    ),
    ("iommu-acpi", ERROR, "ACPI", (("<memballoon", "<iommu model='virtio'/><memballoon"), ("<acpi/>", ""))),
    (
        "iommu-option",
        ERROR,
        "no eim=",
        (("<memballoon", "<iommu model='virtio'><driver eim='on'/></iommu><memballoon"),),
    ),
    ("iommu-option", ERROR, "no width", (*WITH_IOMMU, ("iotlb='on'", "aw_bits='40'"))),
    ("iommu-interrupts", ERROR, "I/O APIC in QEMU", (WITH_IOMMU[0],)),
    ("iommu-interrupts", ERROR, "eim='on' needs", (*WITH_IOMMU, ("intremap='on'", "intremap='off' eim='on'"))),
    ("iommu-interrupts", ERROR, "eim='on' needs", (*WITH_IOMMU, ("intremap='on'", "eim='on'"))),
    ("iommu-interrupts", WARNING, "slower", (WITH_IOMMU[1],)),
    ("iommu-caching", ERROR, "caching_mode", (*WITH_IOMMU, (" caching_mode='on'", ""))),
    ("iommu-locked", WARNING, "2 times", WITH_IOMMU),
    ("iommu-locked", WARNING, "2 times", (*WITH_IOMMU, ("<driver name='vfio'/>", ""))),
    ("iommu-locked", WARNING, "2 times", (*WITH_IOMMU, ("<driver name='vfio'/>", "<driver iommufd='yes'/>"))),
    ("iommu-locked", WARNING, "2 times", (*WITH_IOMMU, ("<devices>", "<iommufd enabled='no'/><devices>"))),
    (
        "iommu-hidden",
        WARNING,
        "does not see",
        ((END, f"<q:commandline xmlns:q='{QEMU}'><q:arg value='intel-iommu'/></q:commandline></domain>"),),
    ),
    ("ioapic", ERROR, "unknown", (("<acpi/>", "<acpi/><ioapic driver='split'/>"),)),
    ("confidential-type", ERROR, "unknown", ((END, "<launchSecurity type='sgx'/></domain>"),)),
    ("confidential-type", ERROR, "s390 only", ((END, "<launchSecurity type='s390-pv'/></domain>"),)),
    ("confidential-type", ERROR, "there are two", ((END, SNP + SNP + END),)),
    ("confidential-policy", ERROR, "no <policy>", ((END, "<launchSecurity type='sev'/></domain>"),)),
    ("confidential-policy", ERROR, "no number", ((END, SNP.replace("0x30000", "strict") + END),)),
    ("confidential-guest", WARNING, "QEMU 9.1 gives", ((END, SNP + END),)),
    ("confidential-guest", WARNING, "tdx need QEMU 10.1", ((END, "<launchSecurity type='tdx'/></domain>"),)),
    ("confidential-guest", ERROR, "no SMM", ((END, SNP + END), ("<acpi/>", "<acpi/><smm state='on'/>"))),
    ("confidential-guest", ERROR, "needs KVM", ((END, SNP + END), ("type='kvm'", "type='qemu'"))),
    ("confidential-guest", WARNING, "q35 only", ((END, SNP + END), ("machine='q35'", "machine='pc'"))),
    ("confidential-guest", WARNING, "pflash", ((END, SNP + END), ("<os>", "<os><loader type='pflash'>/a</loader>"))),
    ("firmware-acpi", ERROR, "UEFI needs ACPI", (("<os>", "<os firmware='efi'>"), ("<acpi/>", ""))),
    (
        "firmware-tseg",
        ERROR,
        "no TSEG",
        (("<acpi/>", "<acpi/><smm><tseg>8</tseg></smm>"), ("machine='q35'", "machine='pc'")),
    ),
    ("firmware-tseg", ERROR, "whole number", (("<acpi/>", "<acpi/><smm><tseg unit='KiB'>3</tseg></smm>"),)),
    ("firmware-secure-boot", WARNING, "Secure Boot", (("<os>", "<os firmware='efi'>"),)),
    ("firmware-secure-boot", ERROR, "needs SMM", (SMM_OFF, ("<os>", f"<os firmware='efi'>{SECURE}"))),
    ("firmware-secure-boot", ERROR, "needs SMM", (SMM_OFF, ("<os>", "<os><loader secure='yes' type='pflash'/>"))),
    (
        "firmware-secure-boot",
        ERROR,
        "enrolled-keys",
        (
            (
                "<os>",
                "<os firmware='efi'><firmware><feature name='secure-boot' enabled='no'/><feature name='enrolled-keys' enabled='yes'/></firmware>",
            ),
        ),
    ),
)

RIGHT: tuple[tuple[str, Replaced], ...] = (
    ("memory in bytes, and a comment", ((">8</memory>", "><!-- all --> 8</memory>"),)),
    ("white space before numbers, and in sets", ((">4</vcpu>", "> 4</vcpu>"), ("busNr='250'", "busNr=' 250'"), ("cpuset='0-1'", "cpuset=' 0 - 1 '"))),
    ("what cells take to reach each other", (("</numa>", LINKS + "</numa>"),)),
    ("an interface of a device of the host", (device(HOSTDEV_NIC),)),
    ("an interface of a USB device", (device("<interface type='hostdev'><source><vendor id='1'/><product id='2'/></source></interface>"),)),
    ("a set with an exclusion", (("<emulatorpin cpuset='0-1'", "<emulatorpin cpuset='0-2,^2'"),)),
    ("emulated bits", (("<maxphysaddr mode='passthrough' limit='46'", "<maxphysaddr mode='emulate' bits='46'"),)),
    ("real time", (("</cputune>", "<vcpusched vcpus='0-3' scheduler='fifo' priority='1'/></cputune>"),)),
    ("no limit of CPU time", (("</cputune>", "<quota>-1</quota><period>100000</period></cputune>"),)),
    ("a cell without CPUs and memory", (("<distances>", "<distances>"),)),
    ("the last bus number that fits", (("busNr='250'", "busNr='253'"),)),
    ("an address that libvirt chooses", (("<address type='pci' domain='0x0000' bus='0x03' slot='0x00' function='0x0'/>", "<address type='pci'/>"),)),
    ("a boot order", (BOOT, ("<graphics", "<disk><target dev='vda'/><boot order='2'/></disk><graphics"))),
    ("two disks", (DISK,)),
    *((f"an interface: {each}", (device(each),)) for each in INTERFACES),
    *((f"a word: {each}", ((END, each + END),)) for each in ("<clock offset='timezone' timezone='UTC'><timer name='armvtimer'/></clock>", "<on_crash>coredump-restart</on_crash>", "<on_lockfailure>ignore</on_lockfailure>", "<clock offset=''/>")),
    ("firmware", (("<os>", "<os firmware='bios'><boot dev='network'/>"),)),
    ("a random number generator", (device(RNG, RNG.replace("'builtin'", "'random'").replace("'virtio'", "'virtio-transitional'")),)),
    ("a disk without a cache, whose writes are synchronous", (DISK, ("cache='none'", "cache='directsync'"))),
    ("one image, which both disks share", (DISK, ("/b.img'/>", "/a.img'/><shareable/>"), ("/a.img'/>", "/a.img'/><shareable/>"))),
    ("one image of two CD drives", (DISK, ("/b.img", "/a.img"), *[("<disk type", "<disk device='cdrom' type")] * 2)),
    ("an I/O thread of a disk whose bus libvirt chooses", (DISK, (" bus='virtio'", ""))),
    ("shares of CPU time", (tuned("<shares>0</shares>"),)),
    ("cache and bandwidth of the same vCPUs", (tuned(CACHE.format("0-1"), CACHE.format("2-3"), BANDWIDTH.format("0-1"), BANDWIDTH.format("0-1")),)),
    ("groups that share no vCPU of the guest", (tuned(CACHE.format("0-1,9"), CACHE.format("2-3,9")),)),
    ("a group that says nothing", (tuned("<cachetune vcpus='0-3'/>", CACHE.format("3")),)),
    ("no USB", (device(NO_USB, "<input type='mouse' bus='ps2'/>"),)),
    ("two USB controllers", (device(XHCI, XHCI.replace("1", "2"), "<input type='tablet' bus='usb'/>"),)),
    ("a TPM and a proxy", (device(PROXY, TPM),)),
    ("serial ports", (device(SERIAL, SERIAL.replace("0", "1"), SERIAL.replace("isa", "pci"), SERIAL.replace(" port='0'", "")),)),
    ("shared memory", (device(VIRTIOFS), SHARED)),
    ("a memory that is shared in each cell", (device(VIRTIOFS), ("<cell id='0'", "<cell id='0' memAccess='shared'"), ("<cell id='1'", "<cell id='1' memAccess='shared'"))),
    ("features of all kinds", (("<acpi/>", "<acpi/><apic/><kvm><hidden state='on'/><pv-ipi state='off'/></kvm><async-teardown enabled='yes'/>"),)),
    ("vCPUs that can be plugged in", (of_a_vcpu("id='1' enabled='no' hotpluggable='yes' order='1'"),)),
    ("memory that can be plugged in", ((VCPU, MAXIMUM.format(" slots='4'", 16)),)),
    ("a memory device", ((VCPU, MAXIMUM.format(" slots='4'", 16)), (DEVICES_END, DIMM.format(0, "0x100000000")))),
    ("two ports with one number", (("port='1'", "port='0'"),)),
    ("two PCI roots of POWER", (("arch='x86_64' machine='q35'", "arch='ppc64' machine='pseries'"), *NO_PC, (PCI, PCI_ROOTS))),
    ("a guest for Arm, with what all have", (*ARM, *NO_PC, ("<acpi/>", "<acpi/><apic/><gic version='3'/><pmu state='off'/><kvm><hint-dedicated state='off'/><dirty-ring state='on' size='4096'/></kvm>"))),
    ("addresses of s390, where functions have no slots", (("arch='x86_64' machine='q35'", "arch='s390x' machine='s390-ccw-virtio'"), *NO_PC, (PCI, S390_DISK))),
    ("a device behind a VMD controller", ((AUDIO, AUDIO.replace("'0x0000'", "'0x10000'")),)),
    ("a switch", ((DEVICES_END, SWITCH + "<controller type='pci' index='5' model='pcie-switch-downstream-port'/></devices>"),)),
    ("an own namespace", (("<iothreads>", "<metadata><a:b xmlns:a='urn:a'/></metadata><iothreads>"),)),
    ("one device behind a vIOMMU", (*WITH_IOMMU, ("<rom bar='off'/>", ""), ("type='pci' managed", "type='usb' managed"), (GPU_AT, "port='1' function='0x0'"), ("<address type='pci' domain='0x0000' port='1' function='0x0'/>", "<address type='usb' port='1'/>"), (AUDIO_AT, AUDIO_AT.replace("0x1'", "0x0'")))),
    ("Secure Boot is named", (("<os>", "<os firmware='efi'><firmware><feature name='secure-boot' enabled='no'/></firmware>"),)),
)  # fmt: skip


def findings(*replaced: tuple[str, str]) -> tuple[Finding, ...]:
    return check(parse(changed(*replaced)))


def told(found: tuple[Finding, ...]) -> list[str]:
    return [f"{each.rule} {each.severity}: {each.reason}" for each in found]


def test_nothing_is_wrong_with_the_good_one() -> None:
    assert told(findings()) == []


@pytest.mark.parametrize(
    ("rule", "severity", "reason", "replaced"), WRONG, ids=lambda each: each if isinstance(each, str) else ""
)
def test_what_is_wrong_is_found(rule: str, severity: Severity, reason: str, replaced: Replaced) -> None:
    found = findings(*replaced)
    assert [each for each in found if each.rule == rule and each.severity is severity and reason in each.reason], told(
        found
    )


@pytest.mark.parametrize(("_name", "replaced"), RIGHT, ids=lambda each: each if isinstance(each, str) else "")
def test_what_is_right_is_left_alone(_name: str, replaced: Replaced) -> None:
    assert told(findings(*replaced)) == []


def test_every_rule_has_a_document_that_it_refuses() -> None:
    assert {rule for rule, *_ in WRONG} | {"name-too-new"} == set(RULES)


@pytest.mark.parametrize(
    ("version", "replaced", "reason"),
    [
        ((9, 0), (), "drops limit"),
        ((9, 3), (), ""),
        ((9, 4), (("<driver name='vfio'/>", "<driver model='nvgrace_gpu_vfio_pci'/>"),), "drops model"),
        ((11, 7), (("<rom bar='off'/>", "<acpi nodeset='1'/>"),), "drops nodeset"),
        ((12, 0), (("<driver name='vfio'/>", "<driver iommufd='yes'/>"),), "drops iommufd"),
        ((12, 1), (("<driver name='vfio'/>", "<driver iommufd='yes'/>"),), ""),
        ((12, 1), (("<devices>", "<iommufd enabled='yes'/><devices>"),), "drops iommufd"),
        ((10, 4), ((END, SNP + END),), "does not know type='sev-snp'"),
        ((11, 3), ((END, "<launchSecurity type='tdx'/></domain>"),), "does not know type='tdx'"),
        ((11, 6), ((END, "<launchSecurity type='tdx'/></domain>"),), ""),
        ((11, 1), (("<devices>", "<throttlegroups/><devices>"),), "drops throttlegroups"),
        ((11, 3), (("<devices>", "<hwuuid>4e8c5df7-c4fa-4719-904f-5579cd5ac35f</hwuuid><devices>"),), "drops hwuuid"),
        ((9, 10), (device(f"<disk>{MAPPED}</disk>"),), "drops iothreads"),
        ((10, 0), (device(f"<disk>{MAPPED}</disk>"),), ""),
        ((11, 4), (("<memballoon", "<iommu model='amd'/><memballoon"),), "does not know model='amd'"),
        ((11, 4), (device("<disk><target dev='a' bus='nvme'/></disk>"),), "does not know bus='nvme'"),
        ((9, 0), (device("<panic model='pvpanic'/>"), ("limit='46'", "")), "does not know model='pvpanic'"),
        ((10, 5), (device("<pstore backend='acpi-erst'/>"),), "drops pstore"),
        ((10, 6), (device("<pstore backend='acpi-erst'/>"),), ""),
        ((10, 6), (("<features>", "<features><ps2 state='off'/>"),), "refuses ps2"),
        ((10, 7), (("<features>", "<features><ps2 state='off'/>"),), ""),
        ((12, 3), (tuned("<energytune vcpus='0'/>"),), "drops energytune"),
    ],
)
def test_what_an_older_libvirt_drops(version: tuple[int, ...], replaced: Replaced, reason: str) -> None:
    found = [each.reason for each in check(parse(changed(*replaced)), version=version) if each.rule == "name-too-new"]
    assert [reason in each for each in found] == [True] * bool(reason), found


@pytest.mark.parametrize(("version", "severity"), [((9, 4), ERROR), ((9, 5), None), (None, WARNING)])
def test_slots_are_needed_by_an_older_libvirt(version: tuple[int, ...] | None, severity: Severity | None) -> None:
    text = changed((VCPU, MAXIMUM.format("", 16)))
    found = [each.severity for each in check(parse(text), version=version) if each.rule == "memory-maximum"]
    assert found == ([severity] if severity else [])


@pytest.mark.parametrize(("version", "severity"), [((9, 1), ERROR), ((9, 2), None), (None, WARNING)])
def test_bits_are_needed_by_an_older_libvirt(version: tuple[int, ...] | None, severity: Severity | None) -> None:
    text = changed(("passthrough' limit='46'", "emulate'"))
    found = [each.severity for each in check(parse(text), version=version) if each.rule == "cpu-address-bits"]
    assert found == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("version", "severity", "rule", "replaced"),
    [
        ((10, 9), ERROR, "vcpu-many", (MANY,)),
        ((10, 10), None, "vcpu-many", (MANY,)),
        ((10, 9), ERROR, "vcpu-many", (MANY, device("<iommu model='intel'/>"))),
        ((12, 1), ERROR, "vcpu-many", (MANY, device("<iommu model='amd'/>"))),
        ((12, 2), None, "vcpu-many", (MANY, device("<iommu model='amd'/>"))),
        ((10, 10), ERROR, "filesystem-readonly", (device(READ_ONLY),)),
        ((11, 0), None, "filesystem-readonly", (device(READ_ONLY),)),
    ],
)
def test_what_an_older_libvirt_needs(
    version: tuple[int, ...], severity: Severity | None, rule: str, replaced: Replaced
) -> None:
    found = check(parse(changed(*replaced)), version=version)
    assert [each.severity for each in found if each.rule == rule] == ([severity] if severity else [])


@pytest.mark.parametrize(("version", "severity"), [((9, 0), ERROR), ((9, 1), None)])
@pytest.mark.parametrize(
    ("rule", "replaced"), [("watchdog", device(ESB, ITCO)), ("cpu-shares", tuned("<shares>1</shares>"))]
)
def test_what_an_older_libvirt_refuses(
    rule: str, replaced: tuple[str, str], version: tuple[int, ...], severity: Severity | None
) -> None:
    found = check(parse(changed(replaced)), version=version)
    assert [each.severity for each in found if each.rule == rule] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("reason", "replaced"),
    [
        ("257 PCI controllers", (DEVICES_END, "<controller type='pci' model='pcie-root-port'/>" * 253 + DEVICES_END)),
        ("129 NUMA cells", (CELLS, f"<numa>{'<cell/>' * 129}</numa>")),
        ("more than any host", ("</cputune>", "<vcpupin vcpu='1' cpuset='0-8191'/>" * 257 + "</cputune>")),
    ],
)
def test_more_than_a_guest_can_have_is_all_that_is_said(reason: str, replaced: tuple[str, str]) -> None:
    (found,) = findings(replaced)
    assert found.rule == "domain-size"
    assert reason in found.reason


def test_another_document_is_no_domain() -> None:
    (found,) = check(parse("<network/>"))
    assert (found.rule, found.path, found.line) == ("domain", "/network", 1)


def test_a_finding_says_where() -> None:
    (found,) = findings(("cpuset='34'", "cpuset='x'"))
    assert found.path == "/domain/cputune/vcpupin[3]"
    assert GOOD.splitlines()[(found.line or 0) - 1].strip() == "<vcpupin vcpu='2' cpuset='34'/>"


def test_findings_of_one_rule_are_limited() -> None:
    found = findings(("</cputune>", "<vcpupin vcpu='0' cpuset='1'/>" * 100 + "</cputune>"))
    assert sum(each.rule == "pin-vcpu" for each in found) == MOST
