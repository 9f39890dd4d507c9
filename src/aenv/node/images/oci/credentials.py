"""Credentials for registries as ``docker login`` and ``podman login`` keep them, helpers too.

Blocking.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aenv.models.errors import HostSetupError
from aenv.models.references import DOCKER_HUB
from aenv.models.registries import RegistryLogin

_HUB_KEY = "https://index.docker.io/v1/"
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
_HELPER_TIMEOUT = 30
GIVEN = "REGISTRY_LOGIN_OF_THIS_PULL"
_TOKEN_USER = "<token>"  # noqa: S105 - the protocol's word for "the secret is a token"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user with a password, an identity token to exchange, or a token to show as it is."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)


def find(registry: str, env: Mapping[str, str] | None = None) -> Credentials | None:
    """What the server's user has for this registry; None: ask anonymously.

    Raises HostSetupError when the file or the helper it names is broken.
    """
    env = os.environ if env is None else env
    if (given := _given(registry, env)) is not None:
        return given
    for path in _files(env):
        try:
            config = json.loads(path.read_text())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise HostSetupError(f"{path} cannot be read: {error}") from error
        if isinstance(config, dict) and (found := _of(config, registry, path)):
            return found
    return None


def given(registry: str, login: RegistryLogin) -> dict[str, str]:
    """The variables by which a process is told a login of one pull."""
    return {GIVEN: json.dumps([registry, login.user, login.password])}


def _given(registry: str, env: Mapping[str, str]) -> Credentials | None:
    """A login that came with the pull; it is for its registry alone."""
    if GIVEN not in env:
        return None
    host, user, password = json.loads(env[GIVEN])
    return Credentials(user, password) if host == registry else None


def _files(env: Mapping[str, str]) -> list[Path]:
    home = Path(env.get("HOME") or Path.home())
    docker = Path(env.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    named = [Path(env["REGISTRY_AUTH_FILE"])] if env.get("REGISTRY_AUTH_FILE") else []
    runtime = env.get("XDG_RUNTIME_DIR")
    podman = [Path(runtime) / "containers/auth.json"] if runtime else []
    return [*named, docker, *podman, home / ".config/containers/auth.json"]


def _of(config: dict[str, Any], registry: str, path: Path) -> Credentials | None:
    keys = _keys(registry)
    helpers = config.get("credHelpers")
    named = [helpers[key] for key in keys if key in helpers] if isinstance(helpers, dict) else []
    store = named[0] if named else config.get("credsStore")
    if isinstance(store, str) and store:
        for key in keys:
            if found := _ask_helper(store, key):
                return found
    entries = config.get("auths")
    for key in keys:
        entry = entries.get(key) if isinstance(entries, dict) else None
        if isinstance(entry, dict) and (found := _read(entry, key, path)):
            return found
    return None


def _keys(registry: str) -> tuple[str, ...]:
    if registry == DOCKER_HUB:
        return (_HUB_KEY, "docker.io", "index.docker.io", "registry-1.docker.io")
    return (registry, f"https://{registry}", f"https://{registry}/v1/", f"https://{registry}/v2/")


def _read(entry: dict[str, Any], key: str, path: Path) -> Credentials | None:
    def text(name: str) -> str:
        value = entry.get(name)
        return value if isinstance(value, str) else ""

    try:
        pair = base64.b64decode(text("auth"), validate=True).decode().rstrip("\0")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise HostSetupError(
            f"{path}: the entry of {key} is not what docker login writes"
        ) from error
    user, _, password = pair.partition(":")
    found = Credentials(
        user or text("username"),
        password or text("password"),
        text("identitytoken"),
        text("registrytoken"),
    )
    return found if found != Credentials() else None


def _ask_helper(name: str, key: str) -> Credentials | None:
    """``docker-credential-NAME get``; None when it has nothing for this key."""
    if not _HELPER.match(name):
        raise HostSetupError(f"{name!r} is no name of a credential helper")
    command = f"docker-credential-{name}"
    try:
        done = subprocess.run(
            [command, "get"],
            input=key,
            capture_output=True,
            text=True,
            timeout=_HELPER_TIMEOUT,
            check=False,
        )
    except FileNotFoundError as error:
        raise HostSetupError(f"the credential helper {command} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise HostSetupError(
            f"the credential helper {command} did not answer in {_HELPER_TIMEOUT} s"
        ) from error
    if done.returncode != 0:
        return None
    try:
        said = json.loads(done.stdout)
        user, secret = str(said["Username"]), str(said["Secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise HostSetupError(f"the credential helper {command} answers no credentials") from error
    if user == _TOKEN_USER:
        return Credentials(identity_token=secret)
    return Credentials(user, secret)
