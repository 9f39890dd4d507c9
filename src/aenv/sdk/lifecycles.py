"""Pausing, resuming and keeping copies: the part of :class:`AsyncSandbox` about its own life."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aenv.models.errors import ConflictError
from aenv.models.sandboxes import NetworkPolicy
from aenv.sdk import servers, wire
from aenv.sdk.client import Client
from aenv.sdk.creates import Create
from aenv.sdk.snapshots import SnapshotInfo

CREATE_WAIT = 60


class Lifecycle:
    """Pause, resume, snapshot, roll back."""

    _client: Client
    _id: str
    _secrets: Mapping[str, str]

    async def pause(self, *, memory: bool = True) -> bool:
        """Let it rest on disk until :meth:`resume`, without costing anything and without an end.
        False when it was paused already.

        Without ``memory`` only its files are kept, and it boots again on resume. Streams are cut;
        the processes behind them go on after the resume.
        """
        try:
            await self._control("POST", "/pause", {"memory": memory})
        except ConflictError:
            return False
        return True

    async def resume(self, *, timeout: int = 300, memory: bool = True) -> bool:
        """Let it run again, and live at least ``timeout`` seconds from now. False when it ran.

        Without ``memory`` it boots from its files, whatever the pause has kept.
        """
        body = {"timeout": timeout, "memory": memory}
        path = f"/v2/sandboxes/{self._id}/connect"
        return (await self._client.call("POST", path, json=body)).status_code == 201

    async def snapshot(self, name: str | None = None, *, memory: bool = True) -> SnapshotInfo:
        """Keep it as it is now; it runs on. Start others by ``create(snapshot.id)``.

        A name may hold a tag, ``name:tag``; the same again takes the place of the older one.
        """
        body: dict[str, Any] = {"memory": memory}
        if name is not None:
            body["name"] = name
        return SnapshotInfo.from_wire((await self._control("POST", "/snapshots", body)).json())

    async def rollback(self, snapshot: SnapshotInfo | str, *, timeout: int = 300) -> None:
        """Go back to a snapshot: this object is from now on a new sandbox, started from it, with
        the old one's metadata, network rules and lifecycle; then the old one is killed.

        So :attr:`id`, host names and tokens change, and a rollback that fails changes nothing: the
        old sandbox runs until the new one does. Secret variables are handed on if this object has
        made the sandbox. Processes and watches of the old one end.
        """
        reference = snapshot if isinstance(snapshot, str) else snapshot.id
        detail = (await self._control("GET", "")).json()
        lifecycle = detail.get("lifecycle") or {}
        request = Create(
            template=reference,
            timeout=timeout,
            secrets=self._secrets,
            metadata=dict(detail.get("metadata") or {}),
            network=_policy(detail),
            auto_pause=lifecycle.get("onTimeout") == "pause",
            auto_resume=bool(lifecycle.get("autoResume")),
        )
        old = self._id
        self._become(await request.send(self._client, wait=CREATE_WAIT))
        await servers.kill(self._client, old)

    def _become(self, body: Mapping[str, Any]) -> None:
        raise NotImplementedError

    async def _control(self, method: str, path: str, body: Any = None) -> Any:
        return await self._client.call(method, f"/sandboxes/{self._id}{path}", json=body)


def _policy(detail: Mapping[str, Any]) -> NetworkPolicy:
    return wire.policy(
        detail.get("network") or {}, allow_internet=detail.get("allowInternetAccess") is not False
    )
