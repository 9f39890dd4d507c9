"""The data-plane proxy: the HTTP protocol class of our server, which splices sandbox traffic past
the ASGI app.

Imports control's route table and the models. ``protocol.make_protocol`` is the way in.
"""

from aenv.server.proxy.core import Proxy, Refusal, Resolve
from aenv.server.proxy.gate import Gate, GateFullError
from aenv.server.proxy.protocol import ProxyProtocol, make_protocol
from aenv.server.proxy.settings import ProxySettings, ProxyStats

__all__ = [
    "Gate",
    "GateFullError",
    "Proxy",
    "ProxyProtocol",
    "ProxySettings",
    "ProxyStats",
    "Refusal",
    "Resolve",
    "make_protocol",
]
