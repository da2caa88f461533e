"""The command `watch`. May not add behaviour to the api."""
