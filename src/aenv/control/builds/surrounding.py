"""Giving the steps of a build the way to the registries that the host uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing

from aenv.node.workbench import (
    APT_CONF,
    APT_SOURCES,
    FOLDER,
    SUITE,
    GuestCommand,
    Output,
    StepError,
    Surroundings,
    Workbench,
)

_MOST = 64 * 1024


async def surround(work: Workbench, around: Surroundings) -> Mapping[str, str]:
    """Write the files that tools read into the guest's memory; the variables that name them."""
    if not around.files:
        return around.env
    env, files = dict(around.env), dict(around.files)
    suite = await _debian_suite(work) if APT_SOURCES in files else None
    if suite is None:
        files.pop(APT_SOURCES, None)
        files.pop(APT_CONF, None)
    else:
        files[APT_SOURCES] = files[APT_SOURCES].replace(SUITE.encode(), suite.encode())
        env["APT_CONFIG"] = f"{FOLDER}/{APT_CONF}"
    for name, content in files.items():
        await work.write_file(f"{FOLDER}/{name}", content)
    return env


async def _debian_suite(work: Workbench) -> str | None:
    """The suite of a Debian guest: "bookworm"."""
    command = GuestCommand(("/bin/cat", "/etc/os-release"), user="root", cwd="/", timeout=30)
    text = b""
    try:
        async with aclosing(work.run(command)) as events:
            async for event in events:
                if isinstance(event, Output) and len(text) < _MOST:
                    text += event.data
    except StepError:
        return None
    lines = text.decode(errors="replace").splitlines()
    fields = {name: value.strip("\"'") for name, _, value in (one.partition("=") for one in lines)}
    suite = fields.get("VERSION_CODENAME", "")
    is_debian = fields.get("ID") == "debian" and re.fullmatch(r"[a-z]{1,32}", suite)
    return suite if is_debian else None
