"""Running the server: one process, one port for control and data plane, until a signal or a request
ends it.

Whatever way it ends, sandboxes go on running unless somebody asked for their end.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any

import structlog
import uvicorn

from aenv.control.instances import DataLock, make_private
from aenv.control.system import System, open_local
from aenv.models.settings import Settings
from aenv.server import logs
from aenv.server.listeners import bind, connection_limit, url_of

log = structlog.get_logger()
GRACE = 5
"""Seconds that open requests have to finish at the end."""
THREADS = 32
"""For calls that block on the disk or the kernel, and use no processor meanwhile: Python's own
default of four more than processors would have them wait for each other.
"""

Ready = Callable[[str], None]
Opener = Callable[[Settings], Awaitable[System]]


def serve(settings: Settings, *, ready: Ready | None = None, opener: Opener = open_local) -> int:
    """Serve until told to stop; ``ready`` is called with the URL once requests are answered.

    ConflictError when another server holds the data folder, HostSetupError for a taken port or
    a folder that is another user's.
    """
    logs.configure()
    with ExitStack() as stack:
        lock = DataLock.acquire(settings.folders.data)
        stack.callback(lock.release)
        make_private(settings.folders.instance_run)
        main = stack.enter_context(bind(settings.host, settings.port))
        settings = replace(settings, port=main.getsockname()[1])
        secure = None
        if settings.tls.port is not None:
            secure = stack.enter_context(bind(settings.host, settings.tls.port))
            tls = replace(settings.tls, port=secure.getsockname()[1])
            settings = replace(settings, tls=tls)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_run(settings, lock, main, secure, ready, opener))


async def _run(
    settings: Settings,
    lock: DataLock,
    main: socket.socket,
    secure: socket.socket | None,
    ready: Ready | None,
    opener: Opener,
) -> int:
    stop = asyncio.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "aenv"))
    with _signals(stop):
        opening = asyncio.ensure_future(opener(settings))
        loading = asyncio.create_task(asyncio.to_thread(_load_app))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                opening.cancel()
                await asyncio.wait({opening})
                return 0
            system = await opening
            try:
                await loading
                server = _server(system, secure, announced(system, lock, ready))
                await _until_stopped(server, main, stop, system.stop)
            finally:
                await system.close()
        finally:
            stopping.cancel()
    return 0


def _load_app() -> None:
    """The web framework is a third of a start's imports: they run while the node waits for its
    tools.
    """
    with _models_built_when_used():
        import fastapi  # noqa: F401
    import aenv.server.app
    import aenv.server.proxy  # noqa: F401


@contextmanager
def _models_built_when_used() -> Iterator[None]:
    """Of FastAPI's own models most are for the OpenAPI document: a start does not pay for them."""
    from pydantic import BaseModel

    BaseModel.model_config["defer_build"] = True
    try:
        yield
    finally:
        del BaseModel.model_config["defer_build"]


class Server(uvicorn.Server):
    """Uvicorn's, with a second listener and our own signals. ``announce`` runs once it listens."""

    def __init__(
        self,
        config: uvicorn.Config,
        secure: tuple[socket.socket, ssl.SSLContext] | None,
        announce: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(config)
        self._secure = secure
        self._announce = announce

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._secure is not None:
            sock, context = self._secure
            loop = asyncio.get_running_loop()
            self.servers.append(
                await loop.create_server(
                    self._protocol, sock=sock, ssl=context, backlog=self.config.backlog
                )
            )
        await self._announce()

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol


def _server(
    system: System, secure: socket.socket | None, announce: Callable[[], Awaitable[None]]
) -> Server:
    from aenv.server.app import create_app
    from aenv.server.proxy import ProxySettings, make_protocol
    from aenv.server.waking import waking

    protocol = make_protocol(
        system.routes,
        ProxySettings(max_connections=min(ProxySettings().max_connections, connection_limit())),
        resolve=waking(system),
        is_credential=system.keys.is_valid,
    )
    system.doors.attach(protocol.proxy.gate)
    stats = protocol.proxy.stats
    system.telemetry.add_source(
        lambda: {f"aenv_proxy_{name}": float(value) for name, value in asdict(stats).items()}
    )
    config = uvicorn.Config(
        create_app(system),
        http=protocol,
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    listener = None
    if secure is not None:
        from aenv.server import tls

        listener = (secure, tls.context(system.settings))
    return Server(config, listener, announce)


def announced(system: System, lock: DataLock, ready: Ready | None) -> Callable[[], Awaitable[None]]:
    """What tells the programs of this machine that the server is there, once it listens."""

    async def announce() -> None:
        settings = system.settings
        url = url_of(settings.host, settings.port)
        await system.keys.publish(settings.folders, url)
        lock.describe(url)  # from here on programs find us, and the key with us
        gc.freeze()  # a full collection of what a start leaves would hold all traffic up for 40 ms
        gc.enable()
        log.info("server ready", url=url, instance=settings.folders.instance)
        if ready is not None:
            ready(url)

    return announce


async def _until_stopped(
    server: Server, main: socket.socket, signalled: asyncio.Event, asked: asyncio.Event
) -> None:
    serving = asyncio.create_task(server.serve([main]))
    waiting = [asyncio.create_task(event.wait()) for event in (signalled, asked)]
    try:
        await asyncio.wait({serving, *waiting}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
    finally:
        for task in waiting:
            task.cancel()


@contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C stop the server; they are handled from the first moment to the last."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
