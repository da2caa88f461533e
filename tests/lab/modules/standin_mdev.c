// SPDX-License-Identifier: GPL-2.0
/*
 * A STAND-IN FOR TESTS, written from public descriptions. It is not NVIDIA's code and drives no GPU.
 *
 * A PCI driver that makes the function it is bound to (by driver_override only) a parent of mediated devices whose
 * types look like those of an A2 with 16 GB:
 *  - a function without SR-IOV is a parent as cards before Ampere are: available_instances counts down;
 *  - a VF is a parent with 0 or 1 instance of each type, and the rules hold over all VFs of the card;
 *  - a physical function with SR-IOV is no parent, and only turns its VFs on and off.
 * A type that does not fit is refused with the errno in the parameter `refusal`.
 */
#include <linux/mdev.h>
#include "standin_card.h"
#include "standin_guest.h"

#define CARD_MEGABYTES 16384
#define PARAMS_MAX 256

static int refusal = EINVAL;
module_param(refusal, int, 0644);
MODULE_PARM_DESC(refusal, "errno of a create that does not fit");

static const struct standin_type types[] = {
	{ 742, "NVIDIA A2-1B", 1024, 16, "num_heads=4, frl_config=45, framebuffer=1024M, max_resolution=5120x2880" },
	{ 745, "NVIDIA A2-2Q", 2048, 8, "num_heads=4, frl_config=60, framebuffer=2048M, max_resolution=7680x4320" },
	{ 746, "NVIDIA A2-4Q", 4096, 4, "num_heads=4, frl_config=60, framebuffer=4096M, max_resolution=7680x4320" },
	{ 754, "NVIDIA A2-4C", 4096, 4, "num_heads=1, frl_config=60, framebuffer=4096M, max_resolution=4096x2400" },
	{ 747, "NVIDIA A2-8Q", 8192, 2, "num_heads=4, frl_config=60, framebuffer=8192M, max_resolution=7680x4320" },
	{ 756, "NVIDIA A2-16C", 16384, 1, "num_heads=1, frl_config=60, framebuffer=16384M, max_resolution=4096x2400" },
};

struct parent_type {
	struct mdev_type type;
	const struct standin_type *is;
	char sysfs_name[8];
};

struct parent {
	struct mdev_parent parent;
	struct standin_card *card;
	bool is_vf;
	unsigned int instances;
	struct parent_type types[ARRAY_SIZE(types)];
	struct mdev_type *pointers[ARRAY_SIZE(types)];
};

struct instance {
	struct vfio_device vdev;
	struct parent *parent;
	const struct standin_type *is;
	struct standin_guest guest;
	char params[PARAMS_MAX];
};

static const struct standin_type *standin_of(struct mdev_type *type)
{
	return container_of(type, struct parent_type, type)->is;
}

static unsigned int room(struct parent *parent, const struct standin_type *type)
{
	unsigned int left = standin_room(parent->card, type);

	return parent->is_vf ? min(left, parent->instances ? 0u : 1u) : left;
}

static int instance_init(struct vfio_device *vdev)
{
	struct instance *instance = container_of(vdev, struct instance, vdev);
	struct mdev_type *type = to_mdev_device(vdev->dev)->type;
	int err = 0;

	instance->parent = container_of(type->parent, struct parent, parent);
	instance->is = standin_of(type);
	standin_guest_init(&instance->guest, PCI_VENDOR_ID_NVIDIA, 0x25b6);
	mutex_lock(&standin_lock);
	if (room(instance->parent, instance->is)) {
		standin_take(instance->parent->card, instance->is);
		instance->parent->instances++;
	} else {
		err = -refusal;
	}
	mutex_unlock(&standin_lock);
	return err;
}

static void instance_release(struct vfio_device *vdev)
{
	struct instance *instance = container_of(vdev, struct instance, vdev);

	mutex_lock(&standin_lock);
	standin_give(instance->parent->card, instance->is);
	instance->parent->instances--;
	mutex_unlock(&standin_lock);
	vfio_free_device(vdev);
}

static ssize_t instance_read(struct vfio_device *vdev, char __user *to, size_t count, loff_t *at)
{
	return standin_guest_read(&container_of(vdev, struct instance, vdev)->guest, to, count, at);
}

static ssize_t instance_write(struct vfio_device *vdev, const char __user *from, size_t count, loff_t *at)
{
	return standin_guest_write(&container_of(vdev, struct instance, vdev)->guest, from, count, at);
}

static const struct vfio_device_ops instance_ops = {
	.name = "standin-mdev",
	.init = instance_init,
	.release = instance_release,
	.read = instance_read,
	.write = instance_write,
	.ioctl = standin_guest_ioctl,
};

static int instance_probe(struct mdev_device *mdev)
{
	struct instance *instance = vfio_alloc_device(instance, vdev, &mdev->dev, &instance_ops);
	int err;

	if (IS_ERR(instance))
		return PTR_ERR(instance);
	dev_set_drvdata(&mdev->dev, instance);
	err = vfio_register_emulated_iommu_dev(&instance->vdev);
	if (err)
		vfio_put_device(&instance->vdev);
	return err;
}

static void instance_remove(struct mdev_device *mdev)
{
	struct instance *instance = dev_get_drvdata(&mdev->dev);

	vfio_unregister_group_dev(&instance->vdev);
	vfio_put_device(&instance->vdev);
}

static ssize_t vgpu_params_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct instance *instance = dev_get_drvdata(dev);

	return sysfs_emit(buf, "%s\n", instance->params);
}

static ssize_t vgpu_params_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t count)
{
	struct instance *instance = dev_get_drvdata(dev);
	size_t length = strcspn(buf, "\n");

	if (length >= PARAMS_MAX)
		return -EINVAL;
	/* a single space clears */
	strscpy(instance->params, buf, length + 1);
	strim(instance->params);
	return count;
}
static DEVICE_ATTR_RW(vgpu_params);

static ssize_t vm_name_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "\n");
}
static DEVICE_ATTR_RO(vm_name);

static struct attribute *instance_attributes[] = { &dev_attr_vgpu_params.attr, &dev_attr_vm_name.attr, NULL };
static const struct attribute_group instance_group = { .name = "nvidia", .attrs = instance_attributes };
static const struct attribute_group *instance_groups[] = { &instance_group, NULL };

static unsigned int available(struct mdev_type *type)
{
	unsigned int left;

	mutex_lock(&standin_lock);
	left = room(container_of(type->parent, struct parent, parent), standin_of(type));
	mutex_unlock(&standin_lock);
	return left;
}

static ssize_t description(struct mdev_type *type, char *buf)
{
	const struct standin_type *is = standin_of(type);

	return sysfs_emit(buf, "%s, max_instance=%u\n", is->details, is->max_instance);
}

static struct mdev_driver instance_driver = {
	.device_api = VFIO_DEVICE_API_PCI_STRING,
	.driver = {
		.name = "nvidia-vgpu-vfio",
		.owner = THIS_MODULE,
		.mod_name = KBUILD_MODNAME,
		.dev_groups = instance_groups,
	},
	.probe = instance_probe,
	.remove = instance_remove,
	.get_available = available,
	.show_description = description,
};

static int parent_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct parent *parent;
	int err = -ENOMEM;
	int i;

	if (pdev->is_physfn)
		return 0;
	parent = kzalloc(sizeof(*parent), GFP_KERNEL);
	if (!parent)
		return -ENOMEM;
	parent->is_vf = pdev->is_virtfn;
	parent->card = standin_card_get(pdev, CARD_MEGABYTES);
	if (!parent->card)
		goto out_free;
	for (i = 0; i < ARRAY_SIZE(types); i++) {
		parent->types[i].is = &types[i];
		snprintf(parent->types[i].sysfs_name, sizeof(parent->types[i].sysfs_name), "%u", types[i].id);
		parent->types[i].type.sysfs_name = parent->types[i].sysfs_name;
		parent->types[i].type.pretty_name = types[i].name;
		parent->pointers[i] = &parent->types[i].type;
	}
	err = mdev_register_parent(&parent->parent, &pdev->dev, &instance_driver, parent->pointers,
				   ARRAY_SIZE(parent->pointers));
	if (err)
		goto out_put;
	pci_set_drvdata(pdev, parent);
	return 0;

out_put:
	standin_card_put(parent->card);
out_free:
	kfree(parent);
	return err;
}

static void parent_remove(struct pci_dev *pdev)
{
	struct parent *parent = pci_get_drvdata(pdev);

	if (pdev->is_physfn) {
		pci_disable_sriov(pdev);
		return;
	}
	mdev_unregister_parent(&parent->parent);
	standin_card_put(parent->card);
	kfree(parent);
}

static struct pci_driver parent_driver = {
	.probe = parent_probe,
	.remove = parent_remove,
	.sriov_configure = pci_sriov_configure_simple,
};

static int __init standin_init(void)
{
	int err = mdev_register_driver(&instance_driver);

	if (err)
		return err;
	parent_driver.name = driver;
	err = pci_register_driver(&parent_driver);
	if (err)
		mdev_unregister_driver(&instance_driver);
	return err;
}

static void __exit standin_exit(void)
{
	pci_unregister_driver(&parent_driver);
	mdev_unregister_driver(&instance_driver);
}

module_init(standin_init);
module_exit(standin_exit);
MODULE_LICENSE("GPL v2");
MODULE_DESCRIPTION("Stand-in for tests: a parent of mediated devices with NVIDIA-like types");
