"""The terminal user interface: screens that stay open. Calls the apis only, and adds no behaviour to them."""
