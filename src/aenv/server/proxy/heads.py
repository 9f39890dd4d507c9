"""The grammar of request and response heads, and what the proxy needs to know of them.

A request head must match one strict expression of RFC 9112 as a whole: CRLF line ends, no folding,
no space before a colon, no control characters. What two parsers could read in two ways is refused,
so that nothing can be smuggled past us to a guest or to the control plane. Heads of guests are
mended first (bare LF, folding) because we write them anew.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

from aenv.models.errors import InvalidRequestError
from aenv.server.proxy.names import (
    AUTHORIZATION,
    CODING,
    CONNECTION,
    EXPECT,
    HOST,
    LENGTH,
    UNIQUE,
    UPGRADE,
    request_kind,
    response_kind,
)

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_FIELDS = rb"((?:" + _TOKEN + rb"{1,512}+:[\t\x20-\x7e\x80-\xff]*+\r\n)*+)\r\n"
_REQUEST = re.compile(
    rb"(" + _TOKEN + rb"{1,32}+) ([!-\x22$-~\x80-\xff]++) HTTP/1\.([01])\r\n" + _FIELDS
)
_RESPONSE = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: ([\t\x20-\x7e\x80-\xff]*+))?\r\n" + _FIELDS
)
_TRAILERS = re.compile(rb"(?:" + _TOKEN + rb"{1,512}+:[\t\x20-\x7e\x80-\xff]*+\r\n)*+")
_ABSOLUTE = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE)
_EMPTY_LINE = re.compile(rb"\n\r?\n")
_LENGTH = re.compile(rb"[0-9]{1,18}")

_MAX_REMEMBERED = 2048


class MalformedHeadError(InvalidRequestError):
    """A head, a chunk or a route that cannot be read in exactly one way."""


class HeadTooLargeError(MalformedHeadError):
    status = 431


@dataclass(slots=True)
class RequestHead:
    """``plain`` holds the lines that pass as they are, ``special`` (name, value, line) the rest.

    ``written`` remembers the heads made of it, by what else they depend on.

    ``length`` is None when there is no Content-Length; ``target`` is in origin form; ``raw`` is
    what came.
    """

    raw: bytes
    method: bytes
    target: bytes
    minor: int
    plain: list[bytes] = field(default_factory=list)
    special: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    unique: dict[bytes, bytes] = field(default_factory=dict)
    host: bytes = b""
    length: int | None = None
    chunked: bool = False
    keep_alive: bool = True
    expects_continue: bool = False
    upgrade: bytes | None = None
    bearer: bool = False
    written: dict[tuple[object, ...], bytes] = field(default_factory=dict)

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.length)

    def header(self, name: bytes) -> bytes:
        """The value of a plain header, empty if absent."""
        for line in self.plain:
            found, _, value = line.partition(b":")
            if found.lower() == name:
                return value.strip(b" \t")
        return b""


@dataclass(slots=True)
class ResponseHead:
    status: int
    minor: int
    reason: bytes
    plain: list[bytes] = field(default_factory=list)
    length: int | None = None
    chunked: bool = False
    keep_alive: bool = True
    upgrade: bytes | None = None
    written: dict[tuple[object, ...], bytes] = field(default_factory=dict)


def parse_request(raw: bytes, *, max_headers: int) -> RequestHead:
    """Read a request head that ends with its empty line. Raises MalformedHeadError.

    Clients repeat themselves to the byte (polls, streams of commands): heads of moderate size are
    remembered, so the result must not be changed.
    """
    if len(raw) > _MAX_REMEMBERED:
        return _parse_request(raw, max_headers)
    return _remembered_request(raw, max_headers)


def _parse_request(raw: bytes, max_headers: int) -> RequestHead:
    match = _REQUEST.fullmatch(raw)
    if match is None:
        raise MalformedHeadError("The request head is not valid HTTP/1.1")
    lines = raw.split(b"\r\n")
    if len(lines) > max_headers + 3:
        raise HeadTooLargeError(f"The request has more than {max_headers} headers")
    head = RequestHead(raw, match[1], match[2], 1 if match[3] == b"1" else 0)
    nominated = _sort_request(head, lines)
    _frame_request(head)
    _address_request(head)
    if nominated:
        head.plain = [line for line in head.plain if _name(line).lower() not in nominated]
    return head


def _sort_request(head: RequestHead, lines: list[bytes]) -> frozenset[bytes]:
    plain, special, unique = head.plain, head.special, head.unique
    connection = upgrade = b""
    for line in lines[1:-2]:
        name, _, value = line.partition(b":")
        kind = request_kind(name)
        if kind is None:
            plain.append(line)
            continue
        value = value.strip(b" \t")
        special.append((kind, value, line))
        if kind in UNIQUE:
            if kind in unique:
                raise MalformedHeadError(f"The header {kind.decode()} occurs twice")
            unique[kind] = value
        elif kind is CONNECTION:
            connection = connection + b"," + value if connection else value
        elif kind is UPGRADE:
            upgrade = upgrade + b", " + value if upgrade else value
        elif kind is AUTHORIZATION:
            head.bearer = head.bearer or value[:7].lower() == b"bearer "
        elif kind is EXPECT:
            head.expects_continue = value.lower() == b"100-continue"
    if not connection or connection == b"keep-alive":
        head.keep_alive = head.minor == 1
        return frozenset()
    tokens = _tokens(connection)
    head.keep_alive = head.minor == 1 and b"close" not in tokens
    head.upgrade = upgrade if upgrade and b"upgrade" in tokens else None
    return tokens


def _frame_request(head: RequestHead) -> None:
    length, coding = head.unique.get(LENGTH), head.unique.get(CODING)
    if coding is not None:
        if length is not None:
            raise MalformedHeadError("Content-Length and Transfer-Encoding exclude each other")
        if coding.lower() != b"chunked" or head.minor == 0:
            raise MalformedHeadError("The only Transfer-Encoding served is chunked, on HTTP/1.1")
        head.chunked = True
    elif length is not None:
        if _LENGTH.fullmatch(length) is None:
            raise MalformedHeadError("Content-Length is not a number")
        head.length = int(length)


def _address_request(head: RequestHead) -> None:
    host = head.unique.get(HOST)
    if host is None and head.minor == 1:
        raise MalformedHeadError("The Host header is missing")
    head.host = host or b""
    target = head.target
    if target[0] == 0x2F:
        return
    if target == b"*" and head.method == b"OPTIONS":
        return
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise MalformedHeadError("The request target must be a path")
    if absolute[1].lower() != head.host.lower():
        raise MalformedHeadError("The request target names another host than the Host header")
    head.target = absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]


def parse_response(data: bytes) -> tuple[ResponseHead, int] | None:
    """A guest's response head and its length, None while it is incomplete. As ``parse_request``.

    What is not strict is mended: guests may end lines with LF alone, and fold them.
    """
    end = data.find(b"\r\n\r\n") + 4
    if end >= 4:
        raw = data[:end]
        strict = _remembered_response(raw) if end <= _MAX_REMEMBERED else _parse_response(raw)
        if strict is not None:
            return strict, end
    empty = _EMPTY_LINE.search(data)
    if empty is None:
        return None
    end = empty.end()
    mended = _parse_response(_mend(data[:end]))
    if mended is None:
        raise MalformedHeadError("The response head is not valid HTTP/1.1")
    return mended, end


def _parse_response(raw: bytes) -> ResponseHead | None:
    match = _RESPONSE.fullmatch(raw)
    if match is None:
        return None
    head = ResponseHead(int(match[2]), 1 if match[1] == b"1" else 0, match[3] or b"")
    plain = head.plain
    connection = upgrade = b""
    for line in raw.split(b"\r\n")[1:-2]:
        name, _, value = line.partition(b":")
        kind = response_kind(name)
        if kind is None:
            plain.append(line)
            continue
        value = value.strip(b" \t")
        if kind is LENGTH:
            _frame_response(head, value)
        elif kind is CODING:
            if head.chunked or value.lower() != b"chunked":
                raise MalformedHeadError("The response has a Transfer-Encoding other than chunked")
            head.chunked = True
        elif kind is CONNECTION:
            connection = connection + b"," + value if connection else value
        elif kind is UPGRADE:
            upgrade = value
    if head.chunked and head.length is not None:
        raise MalformedHeadError("The response has both Content-Length and Transfer-Encoding")
    _connect_response(head, connection, upgrade)
    return head


def _frame_response(head: ResponseHead, value: bytes) -> None:
    if _LENGTH.fullmatch(value) is None:
        raise MalformedHeadError("The response's Content-Length is not a number")
    length = int(value)
    if head.length not in (None, length):
        raise MalformedHeadError("The response has two different Content-Length headers")
    head.length = length


def _connect_response(head: ResponseHead, connection: bytes, upgrade: bytes) -> None:
    tokens = _tokens(connection) if connection else frozenset()
    if head.minor == 1:
        head.keep_alive = b"close" not in tokens
    else:
        head.keep_alive = b"keep-alive" in tokens
    if upgrade:
        head.upgrade = upgrade
    if tokens:
        head.plain = [line for line in head.plain if _name(line).lower() not in tokens]


def has_empty_line(data: bytes | bytearray) -> bool:
    return _EMPTY_LINE.search(data) is not None


def parse_trailers(raw: bytes) -> bytes:
    """The trailer lines that may pass: none that frames, routes, authenticates or belongs to one
    hop."""
    if not raw:
        return b""
    if _TRAILERS.fullmatch(raw) is None:
        raise MalformedHeadError("The trailers are not valid header lines")
    lines = raw.split(b"\r\n")[:-1]
    return b"".join(line + b"\r\n" for line in lines if request_kind(_name(line)) is None)


def _mend(raw: bytes) -> bytes:
    lines = re.sub(rb"\r?\n[ \t]+", b" ", raw)
    return re.sub(rb"\r?\n", b"\r\n", lines)


def _name(line: bytes) -> bytes:
    return line.partition(b":")[0]


def _tokens(value: bytes) -> frozenset[bytes]:
    return frozenset(token.strip(b" \t").lower() for token in value.split(b","))


_remembered_request = lru_cache(maxsize=1024)(_parse_request)
_remembered_response = lru_cache(maxsize=1024)(_parse_response)
