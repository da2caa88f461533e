"""driverctl, the tool most hosts use for this today: whole-process times of its two writes."""

import subprocess
import time


def driverctl_set(address: str, driver: str = "vfio-pci") -> float:
    """Seconds that `driverctl --nosave set-override` took; raises CalledProcessError when it failed."""
    return _seconds(["driverctl", "--nosave", "set-override", address, driver])


def driverctl_unset(address: str) -> float:
    """Seconds that `driverctl --nosave unset-override` took; the function is on its own driver again."""
    return _seconds(["driverctl", "--nosave", "unset-override", address])


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return time.perf_counter() - began
