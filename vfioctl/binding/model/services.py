"""The services that only monitor GPUs. May not import anything."""

GPU_SERVICES = (
    "nvidia-persistenced.service",
    "nvidia-powerd.service",
    "nvidia-dcgm.service",
    "dcgm.service",
    "nvidia-dcgm-exporter.service",
    "dcgm-exporter.service",
)
"""Services that only monitor GPUs, which `--stop-services` may stop. Must not contain display managers."""
