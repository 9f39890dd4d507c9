"""Which server to talk to, and with which key: argument, profile, environment, or the local server.

The credentials file (mode 0600, ``Folders.credentials``) holds profiles by name, ``{"url",
"api_key"}``. A server writes one for itself, named by its instance id and marked ``instance``, and
makes it the ``default`` one unless that belongs to the user (``aenv auth``) or to a running server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from aenv.models.errors import InvalidRequestError, ServerUnreachableError
from aenv.models.folders import Folders
from aenv.sdk import holders

DEFAULT_PROFILE = "default"
DEFAULT_PORT = 8000
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    api_key: str | None = field(default=None, repr=False)

    @property
    def loopback(self) -> bool:
        return (urlsplit(self.url).hostname or "") in _LOOPBACK


@dataclass(frozen=True, slots=True)
class Profile:
    """``instance`` and ``data``: the server that wrote it; None when a user did."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    instance: str | None = None
    data: str | None = None

    def endpoint(self, api_key: str | None = None) -> Endpoint:
        """ServerUnreachableError when it is a server of this machine and does not run."""
        url = self.served_at()
        if url is None:
            raise ServerUnreachableError(
                f"the server of {self.data} does not run; start it with: aenv up --data {self.data}"
            )
        return Endpoint(checked(url), api_key or self.api_key)

    def served_at(self) -> str | None:
        """Where its server listens now. What a server of this machine wrote may be out of date, and
        anybody may listen there by now and collect keys.
        """
        if self.instance is None or self.data is None or not holders.is_ours(Path(self.data)):
            return self.url
        return holders.running(Path(self.data))


def resolve(
    url: str | None = None,
    api_key: str | None = None,
    profile: str | None = None,
    *,
    env: Mapping[str, str] | None = None,
    folders: Folders | None = None,
) -> Endpoint | None:
    """The server somebody named: argument, ``profile`` or ``AENV_PROFILE``, ``AENV_SYSTEM_URL``,
    the user's default profile. None: nobody named one, so it is the local server.
    """
    env = os.environ if env is None else env
    folders = folders or Folders.resolve(env)
    key = api_key or env.get("AENV_API_KEY")
    profiles = read_profiles(folders)
    if url:
        return Endpoint(checked(url), key or _key_for(profiles, url))
    if wanted := profile or env.get("AENV_PROFILE"):
        return _named(profiles, wanted, folders).endpoint(api_key)
    if system := env.get("AENV_SYSTEM_URL"):
        return Endpoint(checked(system), key or _key_for(profiles, system))
    default = profiles.get(DEFAULT_PROFILE)
    if default is not None and default.instance is None:
        return default.endpoint(key)
    return None


def read_profiles(folders: Folders) -> dict[str, Profile]:
    """Profiles by name; empty when there is no file. InvalidRequestError when it is damaged."""
    path = folders.credentials
    try:
        content = json.loads(path.read_text())
        return {
            str(name): Profile(
                entry["url"], entry.get("api_key"), entry.get("instance"), entry.get("data")
            )
            for name, entry in content["profiles"].items()
        }
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidRequestError(f"cannot read the credentials file: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequestError(
            f"{path} is not a credentials file ({type(error).__name__}: {error}); "
            "mend it or move it away"
        ) from error


def checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequestError(f"{url!r} is no server URL; expected like http://127.0.0.1:8000")
    return url.rstrip("/")


def _named(profiles: dict[str, Profile], name: str, folders: Folders) -> Profile:
    try:
        return profiles[name]
    except KeyError:
        raise InvalidRequestError(
            f"there is no profile {name!r} in {folders.credentials}; "
            f"make it with: aenv --profile {name} auth set --url URL --api-key KEY"
        ) from None


def _key_for(profiles: dict[str, Profile], url: str) -> str | None:
    """The stored key of exactly this server: ``--url`` of a known server needs no ``--api-key``."""
    wanted = url.rstrip("/")
    named = [p for p in profiles.values() if p.url.rstrip("/") == wanted]
    return next((p.api_key for p in named if p.served_at() == p.url), None)
