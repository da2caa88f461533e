/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A STAND-IN FOR TESTS, written from public descriptions. It is not NVIDIA's code and drives no GPU.
 *
 * A card and its rule of sizes, shared by both stand-ins. A VF belongs to the card of its physical function.
 * Unless same_size is off, the first instance decides the frame buffer size of all others on the card.
 */
#ifndef STANDIN_CARD_H
#define STANDIN_CARD_H

#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>

struct standin_type {
	unsigned int id;
	const char *name;
	unsigned int megabytes;
	unsigned int max_instance;
	const char *details;
};

struct standin_card {
	struct list_head node;
	struct pci_dev *pf;
	unsigned int functions;
	unsigned int megabytes;
	unsigned int instances;
	unsigned int used;
	unsigned int size;
};

static bool same_size = true;
module_param(same_size, bool, 0644);
MODULE_PARM_DESC(same_size, "all instances of a card have one frame buffer size (as without mixed-size mode)");

static char *driver = "nvidia";
module_param(driver, charp, 0444);
MODULE_PARM_DESC(driver, "name of the PCI driver, so that sysfs looks alike");

/* over all cards; also over what each function of a card carries */
static DEFINE_MUTEX(standin_lock);
static LIST_HEAD(standin_cards);

static inline struct standin_card *standin_card_get(struct pci_dev *pdev, unsigned int megabytes)
{
	struct pci_dev *pf = pci_physfn(pdev);
	struct standin_card *card;

	mutex_lock(&standin_lock);
	list_for_each_entry(card, &standin_cards, node)
		if (card->pf == pf)
			goto found;
	card = kzalloc(sizeof(*card), GFP_KERNEL);
	if (!card)
		goto out;
	card->pf = pf;
	card->megabytes = megabytes;
	list_add(&card->node, &standin_cards);
found:
	card->functions++;
out:
	mutex_unlock(&standin_lock);
	return card;
}

static inline void standin_card_put(struct standin_card *card)
{
	mutex_lock(&standin_lock);
	if (!--card->functions) {
		list_del(&card->node);
		kfree(card);
	}
	mutex_unlock(&standin_lock);
}

/* How many more of only this type the card takes; under the lock. */
static inline unsigned int standin_room(struct standin_card *card, const struct standin_type *type)
{
	if (same_size && card->instances && card->size != type->megabytes)
		return 0;
	if (card->instances >= type->max_instance)
		return 0;
	return min(type->max_instance - card->instances, (card->megabytes - card->used) / type->megabytes);
}

static inline void standin_take(struct standin_card *card, const struct standin_type *type)
{
	card->instances++;
	card->used += type->megabytes;
	card->size = type->megabytes;
}

static inline void standin_give(struct standin_card *card, const struct standin_type *type)
{
	card->instances--;
	card->used -= type->megabytes;
}

#endif
