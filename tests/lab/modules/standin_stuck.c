// SPDX-License-Identifier: GPL-2.0
/*
 * A PCI driver whose unbind never returns, as NVIDIA's does while a process has the GPU open. It belongs to the lab of
 * vfioctl, and drives no hardware. It takes the functions whose driver_override names it.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/pci.h>

static int stuck_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	return 0;
}

static void stuck_remove(struct pci_dev *pdev)
{
	for (;;)
		schedule_timeout_uninterruptible(HZ);
}

/* An empty table: only a function whose driver_override names the driver matches. */
static const struct pci_device_id stuck_ids[] = { { } };

static struct pci_driver stuck_driver = {
	.name = "standin_stuck",
	.id_table = stuck_ids,
	.probe = stuck_probe,
	.remove = stuck_remove,
};
module_pci_driver(stuck_driver);

MODULE_DESCRIPTION("Stand-in for a driver whose unbind never returns");
MODULE_LICENSE("GPL");
