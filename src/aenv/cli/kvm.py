"""Whether KVM works: tried, not looked up."""

from __future__ import annotations

import fcntl
import getpass
import grp
import os
import sys
from pathlib import Path

from aenv.node.engine import Finding, Severity

_GET_API_VERSION = 0xAE00
_CREATE_VM = 0xAE01
_API_VERSION = 12
_DEVICE = Path("/dev/kvm")


def examine() -> Finding:
    """Open the device, ask its version, make a virtual machine. No guest is booted.

    Interface: https://docs.kernel.org/virt/kvm/api.html
    """
    if sys.platform != "linux":
        return Finding("kvm", Severity.OK, "none on this system; no engine here needs it")
    try:
        device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return Finding("kvm", Severity.OK, "no /dev/kvm; gvisor needs none, micro-VMs would")
    except OSError as error:
        return Finding(
            "kvm",
            Severity.WARNING,
            f"{_DEVICE} cannot be opened: {error.strerror}; gvisor needs none, micro-VMs would",
            _admission() if os.geteuid() else None,
        )
    try:
        return _try(device)
    finally:
        os.close(device)


def _admission() -> str | None:
    """The command that lets this user open the device; none where its group is root's."""
    group = _DEVICE.stat().st_gid
    try:
        return f"usermod -aG {grp.getgrgid(group).gr_name} {getpass.getuser()}" if group else None
    except (KeyError, OSError):  # a group or a user without a name
        return None


def _try(device: int) -> Finding:
    try:
        version = fcntl.ioctl(device, _GET_API_VERSION)
        machine = fcntl.ioctl(device, _CREATE_VM, 0)
    except OSError as error:
        return Finding("kvm", Severity.WARNING, f"{_DEVICE} makes no machine: {error.strerror}")
    os.close(machine)
    if version != _API_VERSION:
        return Finding("kvm", Severity.WARNING, f"API version {version} instead of {_API_VERSION}")
    return Finding("kvm", Severity.OK, "makes virtual machines (not tried to boot one)")
