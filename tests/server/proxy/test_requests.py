"""Requests reach the guest they name, and answers come back whole."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.server.proxy.stage import Stage, to

from aenv.models.ids import new_sandbox_id


async def test_the_agent_is_reached_by_header(stage: Stage) -> None:
    agent = await stage.guest()
    route = stage.sandbox(agent)
    wire = await stage.wire()
    await wire.send(f"GET /health?x=1 HTTP/1.1\r\n{to(route)}\r\n")
    answer = await wire.answer()
    assert answer.status == 200
    assert answer.json["line"] == "GET /health?x=1 HTTP/1.1"
