"""What the device plugin answers to Allocate: environment, device nodes, names of CDI devices. Pure."""
