"""Kata Containers: the settings that its guests need for VFIO devices, and a check of all that must fit together."""
