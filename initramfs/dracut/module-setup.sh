#!/bin/bash
# Adds to the initramfs what binds the devices of `vfioctl bind --persistent`: their definitions and rules, the rule of
# vfioctl, vfioctl-early, and the VFIO drivers.

# prints the files of definitions, one a line
definitions() {
    local file address
    for file in "${dracutsysrootdir-}"/etc/vfioctl/devices.d/*.toml; do
        address=${file##*/}
        address=${address%.toml}
        [[ -f $file && ! -L $file && $address != *[!0-9a-f:.]* ]] || continue
        [[ -n $(driver_in "$file") ]] && echo "$file"
    done
}

# driver_in FILE: prints the driver that a definition names
driver_in() {
    local line
    while IFS= read -r line || [[ $line ]]; do
        if [[ $line == 'driver = "'*'"' ]]; then
            line=${line#*\"}
            line=${line%\"}
            [[ $line && $line != -* && $line != *[!a-z0-9_-]* ]] && echo "$line"
        fi
    done < "$1"
}

# called by dracut: 255 is for a module that nothing needs
check() {
    [[ -n $(definitions) ]] || return 255
}

# called by dracut
depends() {
    echo udev-rules
}

# called by dracut
installkernel() {
    local file drivers=()
    while IFS= read -r file; do
        drivers+=("$(driver_in "$file")")
    done < <(definitions)
    # vfio_virqfd is part of vfio since Linux 6.2. The host need not have them loaded now
    hostonly='' instmods "${drivers[@]}" vfio vfio_iommu_type1 vfio_virqfd
}

# called by dracut
install() {
    local file address folder
    while IFS= read -r file; do
        file=${file#"${dracutsysrootdir-}"}
        address=${file##*/}
        inst_simple "$file"
        inst_rules "/etc/udev/rules.d/61-vfioctl-${address%.toml}.rules"
    done < <(definitions)
    for folder in /etc/udev/rules.d /usr/lib/udev/rules.d; do
        [[ -e ${dracutsysrootdir-}$folder/62-vfioctl-boot.rules ]] || continue
        inst_rules "$folder/62-vfioctl-boot.rules"
        break
    done
    inst_simple /usr/lib/vfioctl/vfioctl-early
    [[ ! -e ${dracutsysrootdir-}/etc/vfioctl/disabled ]] || inst_simple /etc/vfioctl/disabled
    inst_hook pre-udev 00 "$moddir/vfioctl-reserve.sh"
    inst_hook pre-pivot 00 "$moddir/vfioctl-release.sh"
}
