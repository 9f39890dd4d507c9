"""The server's settings: one frozen object, read from ``config.toml`` and ``AENV_*`` variables by
``store.settings``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aenv.models.folders import Folders
from aenv.models.sandboxes import Resources

ENGINES = ("gvisor", "process")
"""What ``engine`` may be; which of them run here is the node's to say."""
NO_ISOLATION = (
    "the engine process isolates nothing: what runs in its sandboxes runs as this user, with its "
    "files and its network; for code you trust only"
)


@dataclass(frozen=True, slots=True)
class EgressSettings:
    """``private_allow``: private targets sandboxes may reach, as ``CIDR`` or ``CIDR:port``; the
    operator's to open.
    """

    private_allow: tuple[str, ...] = ()
    dns_upstreams: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """A second listener with a wildcard certificate; made by us when ``cert`` is None."""

    port: int | None = None
    cert: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """``allow``: patterns of registry hosts whose images may be started. ``mirrors``: as
    ``REGISTRY=HOST``, asked first and in order. ``insecure``: hosts reached by plain HTTP.
    """

    allow: tuple[str, ...] = ("*",)
    mirrors: tuple[str, ...] = ()
    insecure: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlobSettings:
    """Where layers, snapshots and memory images are kept for good: in ``bucket`` of an
    S3-compatible ``endpoint`` (None: AWS) under ``prefix``; without one in ``folder`` (None: in
    the data folder), which may be shared by hosts.

    Keys that are not given come from ``profile`` of ``~/.aws/credentials``, AWS_* variables or the
    machine's role. ``path_style``: the bucket stands in the path, not in the host's name.
    """

    folder: str | None = None
    bucket: str | None = None
    prefix: str | None = None
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = True
    profile: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    snapshots: bool | None = None
    """Whether snapshots and paused sandboxes are put there too; None: if it is a bucket, or a
    folder that was named.
    """
    local_mb: int | None = None
    """What snapshots may take here before those that are in the store are dropped; None: no bound.
    """


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """``at_once``: builds that run beside each other. ``cache_mb``: what cached steps may hold,
    ``files_mb``: what uploaded files of COPY steps may. ``host_registries``: whether steps are
    given the host's way to its package registries: ``ask`` (where a build asks), ``always``,
    ``never``.
    """

    at_once: int = 2
    cache_mb: int = 10240
    files_mb: int = 4096
    host_registries: str = "ask"


@dataclass(frozen=True, slots=True)
class Quotas:
    """Per API key; None = unlimited."""

    sandboxes: int | None = None
    cpu: float | None = None
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    folders: Folders
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    domain: str | None = None
    public_url: str | None = None
    engine: str = "gvisor"
    subnet: str = "10.93.0.0/16"
    pool_mb: int = 20480
    disk_reserve_mb: int = 2048
    memory_reserve_mb: int = 512
    memory_overcommit: float = 50.0
    """What running sandboxes may be promised together, as a multiple of the host's memory."""
    hot_memory_mb: int | None = None
    """Memory that paused sandboxes may keep; None: a quarter of the host's."""
    warm_max: int = 8
    """Machines that may wait for creates, over all templates; 0: none."""
    warm_memory_mb: int | None = None
    """Memory that they may hold together; None: an eighth of the host's."""
    warm_idle: float = 300.0
    """Seconds after which a create no longer counts towards how many wait."""
    template_memory: bool = True
    """Whether templates are given memory images."""
    network_slots: int = 8
    inject_host_ca: bool = False
    idle_exit: float | None = None
    defaults: Resources = field(default_factory=Resources)
    egress: EgressSettings = field(default_factory=EgressSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    quotas: Quotas = field(default_factory=Quotas)
    registry: RegistrySettings = field(default_factory=RegistrySettings)
    store: BlobSettings = field(default_factory=BlobSettings)
    builds: BuildSettings = field(default_factory=BuildSettings)
