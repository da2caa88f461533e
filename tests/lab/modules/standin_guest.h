/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A STAND-IN FOR TESTS, written from public descriptions. It is not NVIDIA's code and drives no GPU.
 *
 * What a virtual machine sees of an instance: a PCI function with a configuration space and nothing else, enough for
 * QEMU to take it and for a guest to list it.
 */
#ifndef STANDIN_GUEST_H
#define STANDIN_GUEST_H

#include <linux/pci.h>
#include <linux/uaccess.h>
#include <linux/vfio.h>

#define STANDIN_OFFSET_BITS 40
#define STANDIN_CONFIG_OFFSET ((u64)VFIO_PCI_CONFIG_REGION_INDEX << STANDIN_OFFSET_BITS)

struct standin_guest {
	u8 config[PCI_CFG_SPACE_SIZE];
};

static inline void standin_guest_init(struct standin_guest *guest, u16 vendor, u16 device)
{
	memset(guest->config, 0, sizeof(guest->config));
	*(__le16 *)&guest->config[PCI_VENDOR_ID] = cpu_to_le16(vendor);
	*(__le16 *)&guest->config[PCI_DEVICE_ID] = cpu_to_le16(device);
	/* not of class VGA: of such a function by NVIDIA, QEMU takes it for granted that it has a first BAR */
	*(__le16 *)&guest->config[PCI_CLASS_DEVICE] = cpu_to_le16(PCI_CLASS_DISPLAY_3D);
}

static inline bool standin_in_config(loff_t at, size_t count)
{
	return at >= STANDIN_CONFIG_OFFSET && at + count <= STANDIN_CONFIG_OFFSET + PCI_CFG_SPACE_SIZE;
}

static inline ssize_t standin_guest_read(struct standin_guest *guest, char __user *to, size_t count, loff_t *at)
{
	if (!standin_in_config(*at, count))
		return -EINVAL;
	if (copy_to_user(to, guest->config + (*at - STANDIN_CONFIG_OFFSET), count))
		return -EFAULT;
	*at += count;
	return count;
}

/* Only the command register keeps what is written: there are no BARs. */
static inline ssize_t standin_guest_write(struct standin_guest *guest, const char __user *from, size_t count,
					  loff_t *at)
{
	size_t i;
	u8 byte;

	if (!standin_in_config(*at, count))
		return -EINVAL;
	for (i = 0; i < count; i++, (*at)++) {
		if (get_user(byte, from + i))
			return -EFAULT;
		if ((*at - STANDIN_CONFIG_OFFSET) / 2 == PCI_COMMAND / 2)
			guest->config[*at - STANDIN_CONFIG_OFFSET] = byte;
	}
	return count;
}

static inline long standin_device_info(void __user *user)
{
	struct vfio_device_info info = {};
	size_t size = offsetofend(struct vfio_device_info, num_irqs);

	if (copy_from_user(&info, user, size))
		return -EFAULT;
	if (info.argsz < size)
		return -EINVAL;
	info.flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET;
	info.num_regions = VFIO_PCI_NUM_REGIONS;
	info.num_irqs = VFIO_PCI_NUM_IRQS;
	return copy_to_user(user, &info, size) ? -EFAULT : 0;
}

static inline long standin_region_info(void __user *user)
{
	struct vfio_region_info info = {};
	size_t size = offsetofend(struct vfio_region_info, offset);

	if (copy_from_user(&info, user, size))
		return -EFAULT;
	if (info.argsz < size || info.index >= VFIO_PCI_NUM_REGIONS)
		return -EINVAL;
	info.offset = (u64)info.index << STANDIN_OFFSET_BITS;
	info.size = 0;
	info.flags = 0;
	if (info.index == VFIO_PCI_CONFIG_REGION_INDEX) {
		info.size = PCI_CFG_SPACE_SIZE;
		info.flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
	}
	return copy_to_user(user, &info, size) ? -EFAULT : 0;
}

static inline long standin_irq_info(void __user *user)
{
	struct vfio_irq_info info = {};
	size_t size = offsetofend(struct vfio_irq_info, count);

	if (copy_from_user(&info, user, size))
		return -EFAULT;
	if (info.argsz < size || info.index >= VFIO_PCI_NUM_IRQS)
		return -EINVAL;
	info.flags = 0;
	info.count = 0;
	return copy_to_user(user, &info, size) ? -EFAULT : 0;
}

static inline long standin_guest_ioctl(struct vfio_device *vdev, unsigned int cmd, unsigned long arg)
{
	void __user *user = (void __user *)arg;

	switch (cmd) {
	case VFIO_DEVICE_GET_INFO:
		return standin_device_info(user);
	case VFIO_DEVICE_GET_REGION_INFO:
		return standin_region_info(user);
	case VFIO_DEVICE_GET_IRQ_INFO:
		return standin_irq_info(user);
	case VFIO_DEVICE_RESET:
		return 0;
	}
	return -ENOTTY;
}

#endif
