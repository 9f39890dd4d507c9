"""Where the blobs are, by the settings: a folder of this host or of a shared file system, or a
prefix of an S3-compatible bucket.
"""

from __future__ import annotations

import asyncio
import configparser
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.store import LocalStore, S3Store

from aenv.models.errors import DiskFullError, HostSetupError
from aenv.models.settings import BlobSettings, Settings
from aenv.store.blobs.objects import Objects
from aenv.store.private import make_private

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

FOLDER = "blobs"
CLIENT: ClientConfig = {"connect_timeout": "5s", "timeout": "45s"}
"""A chunk is about a MiB: 45 s is 30 KiB/s."""
RETRY: RetryConfig = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}


async def open_objects(settings: Settings, env: Mapping[str, str] | None = None) -> Objects:
    """Raises HostSetupError, InvalidRequestError; does not ask the store yet."""
    if settings.store.bucket is None:
        return await asyncio.to_thread(_folder, folder_of(settings))
    return await asyncio.to_thread(_bucket, settings.store, os.environ if env is None else env)


def folder_of(settings: Settings) -> Path:
    """Of the blobs, unless they are in a bucket."""
    folder = settings.store.folder
    return Path(folder).expanduser() if folder else settings.folders.data / FOLDER


def _folder(folder: Path) -> Objects:
    try:
        make_private(folder)
    except OSError as error:
        if error.errno == 28:
            raise DiskFullError(f"no room for the blob store at {folder}") from error
        raise HostSetupError(
            f"the blob store's folder {folder} cannot be used: {error.strerror}; mount it, correct "
            "its permissions, or name another one (store.folder)"
        ) from error
    return Objects(LocalStore(prefix=folder), str(folder), folder)


def _bucket(chosen: BlobSettings, env: Mapping[str, str]) -> Objects:
    assert chosen.bucket is not None
    config: dict[str, Any] = {
        "virtual_hosted_style_request": not chosen.path_style,
        **credentials(chosen, env),
    }
    if chosen.region:
        config["region"] = chosen.region
    if chosen.endpoint:
        config["endpoint"] = chosen.endpoint.rstrip("/")
    client: ClientConfig = {
        **CLIENT,
        "allow_http": bool(chosen.endpoint and chosen.endpoint.startswith("http://")),
    }
    prefix = chosen.prefix.strip("/") if chosen.prefix else None
    store = S3Store(
        chosen.bucket, prefix=prefix, client_options=client, retry_config=RETRY, **config
    )
    where = f" of {chosen.endpoint}" if chosen.endpoint else ""
    return Objects(store, f"s3://{chosen.bucket}/{prefix or ''}{where}")


def credentials(chosen: BlobSettings, env: Mapping[str, str]) -> dict[str, str]:
    """Of the settings, else of the profile that they or AWS_PROFILE name; else none, and the client
    looks at AWS_* variables and the machine's role. HostSetupError when the profile has no keys.
    """
    if chosen.access_key_id and chosen.secret_access_key:
        found = {
            "access_key_id": chosen.access_key_id,
            "secret_access_key": chosen.secret_access_key,
        }
        return found | ({"session_token": chosen.session_token} if chosen.session_token else {})
    name = chosen.profile or (None if env.get("AWS_ACCESS_KEY_ID") else env.get("AWS_PROFILE"))
    return _profile(name, env) if name else {}


def _profile(name: str, env: Mapping[str, str]) -> dict[str, str]:
    home = Path(env.get("HOME") or Path.home()) / ".aws"
    path = Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials")
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text())
    except (OSError, configparser.Error) as error:
        raise HostSetupError(f"the profile {name!r} cannot be read from {path}: {error}") from error
    wanted = {
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
    }
    section = parser[name] if parser.has_section(name) else {}
    found = {key: section[option] for key, option in wanted.items() if option in section}
    if not {"access_key_id", "secret_access_key"} <= found.keys():
        raise HostSetupError(
            f"the profile {name!r} in {path} has no aws_access_key_id and aws_secret_access_key; "
            "other kinds of profiles are not read: give the keys in AWS_* variables or store.*"
        )
    return found
