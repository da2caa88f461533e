// SPDX-License-Identifier: GPL-2.0
/*
 * A STAND-IN FOR TESTS, written from public descriptions. It is not NVIDIA's code and drives no GPU.
 *
 * A PCI driver that gives each VF it is bound to (by driver_override only) the folder `nvidia/` of the vendor's own
 * VFIO framework, with types of an L40S with 48 GB, and a vfio device that holds the VF in use while it is open.
 * A physical function with SR-IOV gets no folder; there the driver only turns VFs on and off.
 *
 * Certain of the original: what the files are called and look like, the list that shrinks on all VFs of a card, EIO for
 * a type that cannot be made, "0" to delete. This driver's own choice where the original is not known: EBUSY for
 * any change in use and for a change without "0" between, EPERM for parameters of a VF without a type.
 *
 * Not in the original: `standin_in_use` (write 1 or 0) beside the folder, and the parameters `header` (the list starts
 * with a header line) and `deaf` (writes of types succeed and do nothing).
 */
#include "standin_card.h"
#include "standin_guest.h"

#define CARD_MEGABYTES 49152
#define PARAMS_MAX 256
#define NO_PLACEMENT -1

static bool header = true;
module_param(header, bool, 0644);
MODULE_PARM_DESC(header, "the list of types starts with a header line");

static bool deaf;
module_param(deaf, bool, 0644);
MODULE_PARM_DESC(deaf, "writes of types succeed and do nothing");

static const struct standin_type types[] = {
	{ 1145, "NVIDIA L40S-1B", 1024, 32 },
	{ 1148, "NVIDIA L40S-2Q", 2048, 24 },
	{ 1152, "NVIDIA L40S-8Q", 8192, 6 },
	{ 1154, "NVIDIA L40S-16Q", 16384, 3 },
	{ 1164, "NVIDIA L40S-16A", 16384, 3 },
	{ 1155, "NVIDIA L40S-24Q", 24576, 2 },
	{ 1156, "NVIDIA L40S-48Q", 49152, 1 },
};

struct function {
	struct vfio_device vdev;
	struct standin_card *card;
	const struct standin_type *type;
	bool marked;
	bool open;
	int placement;
	struct standin_guest guest;
	char params[PARAMS_MAX];
};

static struct function *function_of(struct device *dev)
{
	return dev_get_drvdata(dev);
}

static bool in_use(const struct function *function)
{
	return function->marked || function->open;
}

static void clear(struct function *function)
{
	if (function->type)
		standin_give(function->card, function->type);
	function->type = NULL;
	function->placement = NO_PLACEMENT;
	function->params[0] = '\0';
}

static int create(struct function *function, unsigned int id)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(types); i++) {
		if (types[i].id != id || !standin_room(function->card, &types[i]))
			continue;
		function->type = &types[i];
		standin_take(function->card, function->type);
		return 0;
	}
	return -EIO;
}

static ssize_t creatable_vgpu_types_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct function *function = function_of(dev);
	int length = header ? sysfs_emit(buf, "ID    : vGPU Name\n") : 0;
	int i;

	mutex_lock(&standin_lock);
	for (i = 0; i < ARRAY_SIZE(types) && !function->type; i++)
		if (standin_room(function->card, &types[i]))
			length += sysfs_emit_at(buf, length, "%-6u: %s\n", types[i].id, types[i].name);
	mutex_unlock(&standin_lock);
	return length;
}
static DEVICE_ATTR_RO(creatable_vgpu_types);

static ssize_t current_vgpu_type_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	unsigned int id;

	mutex_lock(&standin_lock);
	id = function_of(dev)->type ? function_of(dev)->type->id : 0;
	mutex_unlock(&standin_lock);
	return sysfs_emit(buf, "%u\n", id);
}

static ssize_t current_vgpu_type_store(struct device *dev, struct device_attribute *attr, const char *buf,
				       size_t count)
{
	struct function *function = function_of(dev);
	unsigned int id;
	int err = kstrtouint(buf, 10, &id);

	if (err || deaf)
		return err ?: count;
	mutex_lock(&standin_lock);
	if (in_use(function) || (id && function->type))
		err = -EBUSY;
	else if (id)
		err = create(function, id);
	else
		clear(function);
	mutex_unlock(&standin_lock);
	return err ?: count;
}
static DEVICE_ATTR_RW(current_vgpu_type);

static ssize_t vgpu_params_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", function_of(dev)->params);
}

static ssize_t vgpu_params_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t count)
{
	struct function *function = function_of(dev);
	size_t length = strcspn(buf, "\n");
	int err = 0;

	if (length >= PARAMS_MAX)
		return -EINVAL;
	mutex_lock(&standin_lock);
	if (!function->type) {
		err = -EPERM;
	} else if (in_use(function)) {
		err = -EBUSY;
	} else {
		/* a single space clears */
		strscpy(function->params, buf, length + 1);
		strim(function->params);
	}
	mutex_unlock(&standin_lock);
	return err ?: count;
}
static DEVICE_ATTR_RW(vgpu_params);

static ssize_t placement_id_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	int placement = function_of(dev)->placement;

	return placement == NO_PLACEMENT ? -ENXIO : sysfs_emit(buf, "%d\n", placement);
}

static ssize_t placement_id_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t count)
{
	struct function *function = function_of(dev);
	u16 placement;
	int err = kstrtou16(buf, 10, &placement);

	if (err)
		return err;
	mutex_lock(&standin_lock);
	if (!function->type)
		err = -EPERM;
	else if (in_use(function))
		err = -EBUSY;
	else
		function->placement = placement;
	mutex_unlock(&standin_lock);
	return err ?: count;
}
static DEVICE_ATTR_RW(placement_id);

static ssize_t gpu_instance_id_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return -ENXIO;
}
static DEVICE_ATTR_RO(gpu_instance_id);

static ssize_t standin_in_use_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", in_use(function_of(dev)));
}

static ssize_t standin_in_use_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t count)
{
	int err = kstrtobool(buf, &function_of(dev)->marked);

	return err ?: count;
}
static DEVICE_ATTR_RW(standin_in_use);

static struct attribute *nvidia_attributes[] = {
	&dev_attr_creatable_vgpu_types.attr,
	&dev_attr_current_vgpu_type.attr,
	&dev_attr_vgpu_params.attr,
	&dev_attr_placement_id.attr,
	&dev_attr_gpu_instance_id.attr,
	NULL,
};
static struct attribute *own_attributes[] = { &dev_attr_standin_in_use.attr, NULL };
static const struct attribute_group nvidia_group = { .name = "nvidia", .attrs = nvidia_attributes };
static const struct attribute_group own_group = { .attrs = own_attributes };
static const struct attribute_group *groups_of_a_vf[] = { &nvidia_group, &own_group, NULL };

static int function_open(struct vfio_device *vdev)
{
	struct function *function = container_of(vdev, struct function, vdev);

	mutex_lock(&standin_lock);
	function->open = function->type;
	mutex_unlock(&standin_lock);
	return function->open ? 0 : -ENODEV;
}

static void function_close(struct vfio_device *vdev)
{
	container_of(vdev, struct function, vdev)->open = false;
}

static ssize_t function_read(struct vfio_device *vdev, char __user *to, size_t count, loff_t *at)
{
	return standin_guest_read(&container_of(vdev, struct function, vdev)->guest, to, count, at);
}

static ssize_t function_write(struct vfio_device *vdev, const char __user *from, size_t count, loff_t *at)
{
	return standin_guest_write(&container_of(vdev, struct function, vdev)->guest, from, count, at);
}

static const struct vfio_device_ops function_ops = {
	.name = "standin-vendor",
	.release = vfio_free_device,
	.open_device = function_open,
	.close_device = function_close,
	.read = function_read,
	.write = function_write,
	.ioctl = standin_guest_ioctl,
};

static int function_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct function *function;
	int err = -ENOMEM;

	if (pdev->is_physfn)
		return 0;
	if (!pdev->is_virtfn)
		return -ENODEV;
	function = vfio_alloc_device(function, vdev, &pdev->dev, &function_ops);
	if (IS_ERR(function))
		return PTR_ERR(function);
	function->placement = NO_PLACEMENT;
	standin_guest_init(&function->guest, PCI_VENDOR_ID_NVIDIA, 0x26b9);
	function->card = standin_card_get(pdev, CARD_MEGABYTES);
	if (!function->card)
		goto out_free;
	dev_set_drvdata(&pdev->dev, function);
	err = vfio_register_group_dev(&function->vdev);
	if (err)
		goto out_put;
	err = device_add_groups(&pdev->dev, groups_of_a_vf);
	if (!err)
		return 0;
	vfio_unregister_group_dev(&function->vdev);
out_put:
	standin_card_put(function->card);
out_free:
	vfio_put_device(&function->vdev);
	return err;
}

static void function_remove(struct pci_dev *pdev)
{
	struct function *function = dev_get_drvdata(&pdev->dev);

	if (pdev->is_physfn) {
		pci_disable_sriov(pdev);
		return;
	}
	device_remove_groups(&pdev->dev, groups_of_a_vf);
	vfio_unregister_group_dev(&function->vdev);
	mutex_lock(&standin_lock);
	clear(function);
	mutex_unlock(&standin_lock);
	standin_card_put(function->card);
	vfio_put_device(&function->vdev);
}

static struct pci_driver function_driver = {
	.probe = function_probe,
	.remove = function_remove,
	.sriov_configure = pci_sriov_configure_simple,
	.driver_managed_dma = true,
};

static int __init standin_init(void)
{
	function_driver.name = driver;
	return pci_register_driver(&function_driver);
}

static void __exit standin_exit(void)
{
	pci_unregister_driver(&function_driver);
}

module_init(standin_init);
module_exit(standin_exit);
MODULE_LICENSE("GPL v2");
MODULE_DESCRIPTION("Stand-in for tests: the folder nvidia/ of the vendor's own VFIO framework under each VF");
