"""Bounds on every wait for a node, and on the kinds of its failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aenv.models.errors import AenvError, InfrastructureError


@asynccontextmanager
async def deadline(seconds: float, what: str) -> AsyncIterator[None]:
    """InfrastructureError when the block takes longer than ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise InfrastructureError(f"{what} took longer than {seconds:g} s; try again") from error


def typed(error: Exception, what: str) -> AenvError:
    """Ours as it is; InfrastructureError for what nobody foresaw."""
    return error if isinstance(error, AenvError) else InfrastructureError(f"{what}: {error!r}")
