"""The command `doctor`. May not add behaviour to the api."""
