"""What a settings object must satisfy beyond its types, and the ``AENV_*`` variables that are not
settings.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator
from pathlib import Path

from aenv.models.errors import InvalidRequestError
from aenv.models.settings import ENGINES, BlobSettings, Settings

OTHER_VARIABLES = frozenset(
    {
        "AENV_DATA_DIR",
        "AENV_CACHE_DIR",
        "AENV_CONFIG_DIR",
        "AENV_RUN_DIR",
        "AENV_PROFILE",
        "AENV_SYSTEM_URL",
        "AENV_HOST_VERIFIER",
    }
)
SECRET = frozenset({"api_key", "store.secret_access_key", "store.session_token"})
"""Never shown."""
SMALLEST = {"cpu": 0.1, "memory_mb": 64, "disk_mb": 64}


def check(settings: Settings) -> None:
    """InvalidRequestError for the first rule that is broken."""
    for problem in _problems(settings):
        raise InvalidRequestError(f"setting {problem}")


def _problems(settings: Settings) -> Iterator[str]:
    yield from _ports(settings)
    yield from _sizes(settings)
    yield from _store(settings.store)
    if settings.api_key is not None and not _is_key(settings.api_key):
        yield "'api_key' must be 1 to 512 printable ASCII characters, no blank at either end"
    if settings.engine not in ENGINES:
        yield f"'engine' must be {' or '.join(ENGINES)}, not {settings.engine!r}"
    if not _is_network(settings.subnet, version=4):
        yield f"'subnet' must be an IPv4 network like 10.93.0.0/16, not {settings.subnet!r}"
    for target in settings.egress.private_allow:
        if not _is_target(target):
            yield f"'egress.private_allow' holds {target!r}; expected CIDR or CIDR:port"
    for address in settings.egress.dns_upstreams:
        if not _is_address(address):
            yield f"'egress.dns_upstreams' holds {address!r}; expected an IP address"
    if settings.domain is not None and (not settings.domain or "/" in settings.domain):
        yield f"'domain' must be a bare name like sbx.example.com, not {settings.domain!r}"
    if settings.public_url is not None and not settings.public_url.startswith(
        ("http://", "https://")
    ):
        yield f"'public_url' must start with http:// or https://, not {settings.public_url!r}"


def _ports(settings: Settings) -> Iterator[str]:
    if not 0 <= settings.port <= 65535:
        yield f"'port' must be 0 to 65535, not {settings.port}"
    if settings.tls.port is not None and not 0 <= settings.tls.port <= 65535:
        yield f"'tls.port' must be 0 to 65535, not {settings.tls.port}"
    if (settings.tls.cert is None) != (settings.tls.key is None):
        yield "'tls.cert' and 'tls.key' go together: give both or neither"


def _sizes(settings: Settings) -> Iterator[str]:
    for name in (
        "pool_mb",
        "disk_reserve_mb",
        "memory_reserve_mb",
        "network_slots",
        "warm_max",
    ):
        if getattr(settings, name) < 0:
            yield f"{name!r} must not be negative"
    for name in ("hot_memory_mb", "warm_memory_mb"):
        limit = getattr(settings, name)
        if limit is not None and limit < 0:
            yield f"{name!r} must not be negative"
    for name in ("at_once", "cache_mb", "files_mb"):
        if getattr(settings.builds, name) < 1:
            yield f"'builds.{name}' must be at least 1"
    if (found := settings.builds.host_registries) not in ("ask", "always", "never"):
        yield f"'builds.host_registries' must be ask, always or never, not {found!r}"
    if not _positive(settings.warm_idle):
        yield "'warm_idle' must be a positive number of seconds"
    if not (_positive(settings.memory_overcommit) and settings.memory_overcommit >= 1):
        yield "'memory_overcommit' must be at least 1"
    if settings.idle_exit is not None and not _positive(settings.idle_exit):
        yield "'idle_exit' must be a positive number of seconds"
    for name, smallest in SMALLEST.items():
        if not getattr(settings.defaults, name) >= smallest:
            yield f"'defaults.{name}' must be at least {smallest}"
    for name in ("sandboxes", "cpu", "memory_mb"):
        limit = getattr(settings.quotas, name)
        if limit is not None and not limit >= 0:
            yield f"'quotas.{name}' must not be negative"


def _store(store: BlobSettings) -> Iterator[str]:
    if store.folder is not None and not Path(store.folder).expanduser().is_absolute():
        yield f"'store.folder' must be an absolute path, not {store.folder!r}"
    if store.folder is not None and store.bucket is not None:
        yield "'store.folder' and 'store.bucket' exclude each other: give one of them"
    for name in ("prefix", "endpoint", "region", "profile", "access_key_id"):
        if store.bucket is None and getattr(store, name) is not None:
            yield f"'store.{name}' is of use with 'store.bucket' only"
    if store.endpoint is not None and not store.endpoint.startswith(("http://", "https://")):
        yield f"'store.endpoint' must start with http:// or https://, not {store.endpoint!r}"
    if store.local_mb is not None and store.local_mb < 0:
        yield "'store.local_mb' must not be negative"
    if (store.access_key_id is None) != (store.secret_access_key is None):
        yield "'store.access_key_id' and 'store.secret_access_key' go together: give both"


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _is_key(text: str) -> bool:
    """What survives the way through an HTTP header unchanged."""
    return 1 <= len(text) <= 512 and text.isascii() and text.isprintable() and text == text.strip()


def _is_target(text: str) -> bool:
    network, colon, port = text.partition(":")
    if colon and not (port.isdecimal() and 1 <= int(port) <= 65535):
        return False
    return _is_network(network, version=4)


def _is_network(text: str, *, version: int) -> bool:
    try:
        return ipaddress.ip_network(text).version == version
    except ValueError:
        return False


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
