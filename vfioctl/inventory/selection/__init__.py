"""Chooses functions of an inventory: by selectors, and by the filters of listings. May not do input or output."""
