"""``docs/e2b.md`` lists every route, as built or as not built yet."""

from __future__ import annotations

import re
from pathlib import Path

from aenv.server.app import document
from aenv.server.unbuilt import ROUTES

PAGE = Path(__file__).parents[2] / "docs" / "e2b.md"
ROW = re.compile(r"^\| `([A-Z]+) (/[^`]*)` \| (built|501) \|", re.MULTILINE)


def shape(path: str) -> str:
    """A path with its parameters nameless."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def documented() -> dict[tuple[str, str], str]:
    return {(m, shape(path)): state for m, path, state in ROW.findall(PAGE.read_text())}


def test_every_route_is_documented_as_it_is() -> None:
    served = {
        (method.upper(), shape(path)): "built"
        for path, operations in document()["paths"].items()
        for method in operations
    }
    refused = {(method, shape(path)): "501" for method, path, _ in ROUTES}
    assert documented() == served | refused
