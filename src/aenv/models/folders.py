"""Where files live: data, cache, config and run folders, as root and as a user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aenv.models.ids import instance_id


@dataclass(frozen=True, slots=True)
class Folders:
    """``data`` belongs to one server; ``cache`` is host-wide; ``run`` is lost at reboot."""

    data: Path
    cache: Path
    config: Path
    run: Path

    @classmethod
    def resolve(
        cls,
        env: Mapping[str, str] | None = None,
        *,
        data: Path | None = None,
        uid: int | None = None,
    ) -> Folders:
        """Read ``AENV_{DATA,CACHE,CONFIG,RUN}_DIR``, else the defaults for this user."""
        env = os.environ if env is None else env
        uid = os.geteuid() if uid is None else uid
        home = Path(env.get("HOME") or os.path.expanduser("~"))
        if uid == 0:
            defaults = {
                "data": Path("/var/lib/aenv"),
                "cache": Path("/var/cache/aenv"),
                "config": Path("/etc/aenv"),
                "run": Path("/run/aenv"),
            }
        else:
            runtime = env.get("XDG_RUNTIME_DIR")
            defaults = {
                "data": Path(env.get("XDG_DATA_HOME") or home / ".local/share") / "aenv",
                "cache": Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "aenv",
                "config": Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "aenv",
                "run": Path(runtime) / "aenv" if runtime else Path(f"/tmp/aenv-{uid}"),  # noqa: S108
            }
        found = {
            name: Path(env.get(f"AENV_{name.upper()}_DIR") or default).expanduser().absolute()
            for name, default in defaults.items()
        }
        if data is not None:
            found["data"] = data.expanduser().absolute()
        return cls(**found)

    @property
    def instance(self) -> str:
        return instance_id(self.data)

    @property
    def instance_run(self) -> Path:
        """The run folder of this server instance."""
        return self.run / self.instance

    @property
    def credentials(self) -> Path:
        """Profiles (url, api key) for the SDK and CLI; mode 0600."""
        return self.config / "credentials.json"
