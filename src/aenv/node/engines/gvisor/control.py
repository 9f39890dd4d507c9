"""A sandbox's control socket: gVisor's urpc, JSON with file descriptors, of the pinned release.

Calls are ``{"method", "arg"}``, replies ``{"success", "err", "result"}`` on a stream socket, one
connection per call as runsc does it; descriptors travel with the first bytes. (gVisor: pkg/urpc,
runsc/boot/controller.go, pkg/sentry/control.)
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aenv.models.errors import EngineError
from aenv.node.engine import ExecResult
from aenv.node.engines.gvisor.config import CAPABILITIES, PATH
from aenv.node.engines.tasks import finish

RUNNING = 2
_CALL_TIMEOUT = 20.0
_CHECKPOINT_TIMEOUT = 600.0
_OUTPUT_LIMIT = 4 << 20
_CAPABILITY_NUMBERS = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_SYS_CHROOT": 18,
    "CAP_MKNOD": 27,
    "CAP_AUDIT_WRITE": 29,
    "CAP_SETFCAP": 31,
}
_CAPABILITY_SET = sum(1 << _CAPABILITY_NUMBERS[name] for name in CAPABILITIES)
IMAGE_FILES = ("checkpoint.img", "pages_meta.img", "pages.img")


class ControlUnreachableError(EngineError):
    """The socket is absent or its sandbox is gone: nothing was asked of it."""


class ControlSocket:
    """``same_release``: whether the sandbox was started by the pinned release; another one's calls
    may differ, so nothing is asked of it.
    """

    def __init__(self, sandbox_id: str, path: str, *, same_release: bool = True) -> None:
        self._sandbox_id = sandbox_id
        self._path = path
        self._same_release = same_release

    async def pause(self) -> None:
        await self.call("containerManager.Pause", None)

    async def resume(self) -> None:
        await self.call("containerManager.Resume", None)

    async def running(self) -> bool:
        return bool(
            await self.call("containerManager.ContainerRuntimeState", self._sandbox_id) == RUNNING
        )

    async def processes(self) -> list[dict[str, Any]]:
        return list(await self.call("containerManager.Processes", self._sandbox_id) or [])

    async def checkpoint(self, folder: Path) -> None:
        """Write an image into ``folder`` (must exist, empty); the sandbox goes on, or stays
        paused.
        """
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        files: list[int] = []
        try:
            files.extend(os.open(folder / name, flags, 0o600) for name in IMAGE_FILES)
            argument = {
                "metadata": {"compression": "none"},
                "have_pages_file": True,
                "Resume": True,
            }
            await self.call(
                "containerManager.Checkpoint", argument, files, timeout=_CHECKPOINT_TIMEOUT
            )
        finally:
            for file in files:
                os.close(file)

    async def execute(
        self, argv: Sequence[str], environment: Mapping[str, str], timeout: float
    ) -> ExecResult:
        """Run a program as root in ``/`` and collect what it writes; it is killed at
        ``timeout``.
        """
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        out, err = _Pipe(), _Pipe()
        try:
            argument = {
                "argv": list(argv),
                "envv": [f"{k}={v}" for k, v in {"PATH": PATH, **environment}.items()],
                "wd": "/",
                "KUID": 0,
                "KGID": 0,
                "Capabilities": dict.fromkeys(
                    ("PermittedCaps", "EffectiveCaps", "BoundingCaps"), _CAPABILITY_SET
                ),
                "GuestFDs": [0, 1, 2],
                "ContainerID": self._sandbox_id,
            }
            files = [null, out.writer, err.writer]
            pid = await self.call("containerManager.ExecuteAsync", argument, files)
            out.close_writer()
            err.close_writer()
            return await self._collect(int(pid), out, err, timeout)
        finally:
            os.close(null)
            out.close()
            err.close()

    async def _collect(self, pid: int, out: _Pipe, err: _Pipe, timeout: float) -> ExecResult:
        waiting = {"PID": pid, "CID": self._sandbox_id}
        readers = [asyncio.create_task(pipe.read()) for pipe in (out, err)]
        try:
            status = await self.call("containerManager.WaitPID", waiting, timeout=timeout)
            async with asyncio.timeout(1):  # what it wrote is there; its children may hold the pipe
                await asyncio.gather(*readers, return_exceptions=True)
        except TimeoutError:
            pass
        except BaseException:
            await self._kill(pid)
            raise
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        return ExecResult(
            os.waitstatus_to_exitcode(int(status)) % 256
            if not os.WIFSIGNALED(int(status))
            else 128 + os.WTERMSIG(int(status)),
            bytes(out.data),
            bytes(err.data),
        )

    async def _kill(self, pid: int) -> None:
        kill = {"CID": self._sandbox_id, "Signo": 9, "PID": pid, "Mode": 0}
        with suppress(EngineError):  # it ended by itself, or the sandbox did
            await finish(self.call("containerManager.Signal", kill))

    async def call(
        self,
        method: str,
        argument: object,
        files: Sequence[int] = (),
        *,
        timeout: float = _CALL_TIMEOUT,
    ) -> Any:
        """The result of one call; EngineError with gVisor's words, or when it takes too long."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(timeout):
                await self._connect(sock)
                message = json.dumps({"method": method, "arg": argument}).encode()
                await _send(sock, message, files)
                reply = await _receive(sock)
        except TimeoutError:
            raise EngineError(
                f"sandbox {self._sandbox_id} did not answer {method} within {timeout:g} s"
            ) from None
        except OSError as error:
            raise EngineError(f"sandbox {self._sandbox_id}: {method}: {error}") from error
        finally:
            sock.close()
        if not reply.get("success"):
            raise EngineError(f"sandbox {self._sandbox_id}: {method}: {reply.get('err')}")
        return reply.get("result")

    async def _connect(self, sock: socket.socket) -> None:
        if not self._same_release:
            raise ControlUnreachableError(f"sandbox {self._sandbox_id} runs under another release")
        path, handle = self._path, -1
        if len(path) > 100 and path.startswith("/"):
            handle = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
            path = f"/proc/self/fd/{handle}/{os.path.basename(path)}"
        try:
            await asyncio.get_running_loop().sock_connect(sock, path)
        except OSError as error:
            raise ControlUnreachableError(
                f"sandbox {self._sandbox_id} has no control socket that answers: {error}"
            ) from error
        finally:
            if handle >= 0:
                os.close(handle)


class _Pipe:
    """What a guest program writes to one descriptor, at most _OUTPUT_LIMIT bytes of it."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self.data = bytearray()

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def readable() -> None:
            chunk = os.read(self.reader, 65536)
            self.data += chunk[: _OUTPUT_LIMIT - len(self.data)]
            if not chunk and not ended.done():
                ended.set_result(None)

        loop.add_reader(self.reader, readable)
        try:
            await ended
        finally:
            loop.remove_reader(self.reader)


async def _send(sock: socket.socket, message: bytes, files: Sequence[int]) -> None:
    """Descriptors go with the first bytes; a fresh socket always has room for those."""
    sent = socket.send_fds(sock, [message], list(files)) if files else 0
    await asyncio.get_running_loop().sock_sendall(sock, message[sent:])


async def _receive(sock: socket.socket) -> dict[str, Any]:
    loop, data = asyncio.get_running_loop(), bytearray()
    while True:
        chunk = await loop.sock_recv(sock, 65536)
        if not chunk:
            raise ConnectionResetError("the sandbox hung up")
        data += chunk
        try:
            reply = json.loads(data)
        except ValueError:
            continue  # not whole yet
        return dict(reply)
