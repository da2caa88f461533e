"""The commands vgpu and sriov."""
