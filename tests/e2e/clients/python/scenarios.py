"""Runs scenarios against a live server with the published SDK of the environment this runs in.

A scenario is a function decorated with ``@scenario``; it gets the module's shared sandbox unless it
takes no argument. Modules of scenarios import nothing but the SDK, what the SDK needs, and the
standard library. Prints one JSON line per scenario.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
import time
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from e2b import AsyncSandbox, Sandbox

SDK = tuple(int(part) for part in version("e2b").split(".")[:2])
_found: dict[str, list[Callable[..., Any]]] = {}


def scenario(function: Callable[..., Any]) -> Callable[..., Any]:
    _found.setdefault(function.__module__, []).append(function)
    return function


def raises(kind: type[BaseException], action: Callable[[], Any]) -> BaseException:
    """The error that ``action`` raises, which must be a ``kind``."""
    try:
        outcome = action()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected, got {outcome!r}")


def until(condition: Callable[[], Any], timeout: float = 10) -> Any:
    """The first true value of ``condition()``."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


def _call(function: Callable[..., Any], sandbox: Sandbox) -> None:
    wanted = len(inspect.signature(function).parameters)
    if not inspect.iscoroutinefunction(function):
        function(*[sandbox][:wanted])
        return

    async def run() -> None:
        shared = [await AsyncSandbox.connect(sandbox.sandbox_id)] if wanted else []
        await function(*shared)

    asyncio.run(run())


def _run(module: str, sandbox: Sandbox) -> None:
    for function in _found[module]:
        started = time.perf_counter()
        error = None
        try:
            _call(function, sandbox)
        except BaseException:  # noqa: BLE001  whatever it is, it is this scenario's outcome
            error = traceback.format_exc()
        outcome = {
            "name": f"{module}.{function.__name__}",
            "error": error,
            "seconds": time.perf_counter() - started,
        }
        print(json.dumps(outcome), flush=True)


def main(modules: list[str]) -> None:
    for module in modules:
        importlib.import_module(module)
        sandbox = Sandbox.create(timeout=600)
        try:
            _run(module, sandbox)
        finally:
            sandbox.kill()


if __name__ == "__main__":
    sys.modules["scenarios"] = sys.modules["__main__"]
    main(sys.argv[1:])
