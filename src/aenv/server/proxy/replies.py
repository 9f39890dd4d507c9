"""What the proxy itself answers: the bodies of contract e2b §2.5, as JSON or, for browsers, as a
page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from http import HTTPStatus

from aenv.models.sandboxes import AGENT_PORT
from aenv.server.proxy.routing import Style, Target

_UNAUTHORIZED = (
    "unauthorized access, please provide a valid access token or method signing if supported"
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A final answer; ``target`` is named in the body when there is one."""

    status: int
    message: str
    target: Target | None = None
    with_port: bool = False
    retry_after: float | None = None

    @property
    def json(self) -> bytes:
        body: dict[str, str | int] = {}
        if self.target is not None:
            body["sandboxId"] = self.target.sandbox_id[:128]
        body["message"] = self.message
        if self.target is not None and self.with_port:
            body["port"] = self.target.port
        body["code"] = self.status
        return json.dumps(body, separators=(",", ":")).encode()

    @property
    def page(self) -> bytes:
        title = f"{self.status} {_phrase(self.status)}"
        facts = ""
        if self.target is not None:
            facts = f"<p>Sandbox <code>{escape(self.target.sandbox_id[:128])}</code>"
            facts += f", port {self.target.port}</p>" if self.with_port else "</p>"
        return _PAGE.format(title=title, message=escape(self.message), facts=facts).encode()

    def encode(self, *, html: bool, head_only: bool, close: bool) -> bytes:
        body = self.page if html else self.json
        kind = "text/html; charset=utf-8" if html else "application/json"
        lines = [
            f"HTTP/1.1 {self.status} {_phrase(self.status)}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
        ]
        if self.retry_after is not None:
            lines.append(f"Retry-After: {max(1, round(self.retry_after))}")
        if close:
            lines.append("Connection: close")
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        return head if head_only else head + body


def not_found(target: Target, *, paused: bool) -> Reply:
    """502 for E2B's clients; AgentENV's know 404, and 410 for a paused sandbox that does not resume
    by itself."""
    if target.style is Style.E2B:
        return Reply(502, "The sandbox was not found", target)
    if paused:
        return Reply(410, "The sandbox is paused and does not resume by itself", target)
    return Reply(404, "The sandbox was not found", target)


def port_closed(target: Target) -> Reply:
    return Reply(502, "The sandbox is running but port is not open", target, with_port=True)


def connect_timeout(target: Target) -> Reply:
    return Reply(504, "The sandbox did not accept the connection in time", target, with_port=True)


def broken_answer(target: Target) -> Reply:
    return Reply(
        502, "The sandbox closed the connection without a valid answer", target, with_port=True
    )


def barred(target: Target) -> Reply:
    """Where nothing runs that could say so: the agent's own words on its port."""
    if target.port == AGENT_PORT:
        return Reply(401, _UNAUTHORIZED)
    return traffic_token_needed(target)


def traffic_token_needed(target: Target) -> Reply:
    return Reply(
        403,
        "The sandbox takes no public traffic: send its token as e2b-traffic-access-token",
        target,
    )


def host_only() -> Reply:
    return Reply(404, "Not found")


def busy(target: Target, limit: int) -> Reply:
    return Reply(429, f"The sandbox already has {limit} requests in flight", target, retry_after=1)


def on_hold(target: Target) -> Reply:
    return Reply(
        503, "The sandbox is being checkpointed; send the request again", target, retry_after=1
    )


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase


_STYLE = "font:16px/1.5 system-ui,sans-serif;margin:15vh auto;max-width:36rem;padding:0 1rem"
_PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    f"<style>body{{{{{_STYLE}}}}}</style></head>"
    "<body><h1>{title}</h1><p>{message}</p>{facts}</body></html>"
)
