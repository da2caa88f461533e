"""What the use cases of vGPUs do: plan an intent, create with retries, restore after a boot, find holders."""
