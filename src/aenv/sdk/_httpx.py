"""httpx, imported without its command line: ``from aenv.sdk._httpx import httpx``.

Where click, rich and pygments are installed ``import httpx`` loads them all for a command that
nobody here runs: 0.1 s of every start of ours. It is made for their absence, so we feign it.
"""

from __future__ import annotations

import sys
from typing import cast

_COMMAND_LINE = "httpx._main"

_modules = cast("dict[str, object]", sys.modules)
_absent = "httpx" not in _modules
if _absent:
    _modules[_COMMAND_LINE] = None
try:
    import httpx
finally:
    if _absent:
        del _modules[_COMMAND_LINE]

__all__ = ["httpx"]
