"""A small DNS server: answers every A question with one address, over datagrams and streams."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field

from aenv.node.network import messages

ANSWER = "93.184.216.34"


def query(name: str = "example.com", identity: int = 0x1234) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    header = struct.pack("!HHHHHH", identity, 0x0100, 1, 0, 0, 0)
    return header + labels + b"\0" + struct.pack("!HH", 1, 1)


def rcode(reply: bytes) -> int:
    return reply[3] & 0x0F


@dataclass
class Resolver(asyncio.DatagramProtocol):
    """``silent``: never answer. ``seen`` counts questions."""

    silent: bool = False
    seen: list[bytes] = field(default_factory=list)
    transports: list[asyncio.DatagramTransport | asyncio.Server] = field(default_factory=list)

    async def listen(self, datagrams: socket.socket, streams: socket.socket | None = None) -> None:
        loop = asyncio.get_running_loop()
        datagrams.setblocking(False)
        transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=datagrams)
        self.transports.append(transport)
        self._transport = transport
        if streams is not None:
            self.transports.append(await asyncio.start_server(self._converse, sock=streams))

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.seen.append(data)
        if not self.silent:
            self._transport.sendto(self._reply(data), addr)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                asked = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
                self.seen.append(asked)
                reply = self._reply(asked)
                writer.write(len(reply).to_bytes(2, "big") + reply)
        writer.close()

    def _reply(self, asked: bytes) -> bytes:
        header = asked[:2] + struct.pack("!HHHHH", 0x8180, 1, 1, 0, 0)
        answer = struct.pack("!HHHIH", 0xC00C, 1, 1, 60, 4) + socket.inet_aton(ANSWER)
        return header + messages.question(asked) + answer

    def close(self) -> None:
        for transport in self.transports:
            transport.close()
