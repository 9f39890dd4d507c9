"""Accounts and other small files of ``/etc`` that every image of ours agrees on."""

from __future__ import annotations

USER = "user"
UID = 1000

HOSTS = """\
127.0.0.1 localhost
::1 localhost ip6-localhost ip6-loopback
"""

ENVIRONMENT = "LANG=C.UTF-8\n"

SUDOERS = f"""\
Defaults env_reset, !fqdn
Defaults secure_path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
root ALL=(ALL:ALL) ALL
{USER} ALL=(ALL:ALL) NOPASSWD: ALL
"""
