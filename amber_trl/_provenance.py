"""The versions and the machine that a run was made with."""

import contextlib
import functools
import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path

import torch

_PACKAGES = ("amber_trl", "torch", "torchrl", "tensordict", "gymnasium", "mujoco", "box2d", "numpy")


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect a run's numbers, by name."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        if (found := version(name)) is not None:
            versions[name] = found
    return versions


def machine() -> dict[str, str]:
    """The system, processor, instruction set and GPU, which affect the last bits of a run's numbers."""
    found = {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
    if torch.cuda.is_initialized():  # a CPU run must not initialise the GPU to get its name
        found["gpu"] = torch.cuda.get_device_name()
    return found


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """The differences between two results of the functions above, one text each."""
    return tuple(
        f"{name} was {before.get(name, 'absent')}, is {now.get(name, 'absent')}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    )


@functools.cache  # reading versions takes as long as writing a small checkpoint
def version(package: str) -> str | None:
    """Version of an installed package."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


@functools.cache
def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor()
