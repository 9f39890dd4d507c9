"""The Debian mirrors that this machine is configured to use, as APT sources for one suite.

Reads ``/etc/apt/sources.list`` and ``sources.list.d`` in both formats (sources.list(5));
repositories of other vendors are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aenv.models.errors import HostSetupError

SOURCES_VARIABLE = "AENV_DEBIAN_SOURCES"
_ONE_LINE = re.compile(
    r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)"
)
_POCKETS = ("", "-updates", "-security", "/updates")
_ARCHIVES = ("debian", "debian-security")


@dataclass(frozen=True, slots=True)
class AptSource:
    """One repository and suite. ``signed_by``: a keyring's path, or an ASCII-armoured key."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str | None = None
    trusted: bool = False

    def deb822(self) -> str:
        lines = ["Types: deb", f"URIs: {self.uri}", f"Suites: {self.suite}"]
        lines.append(f"Components: {' '.join(self.components)}")
        if self.signed_by:
            lines.append(f"Signed-By: {self.signed_by}")
        if self.trusted:
            lines.append("Trusted: yes")
        return "\n".join(lines) + "\n"


def debian_sources(
    suite: str, env: Mapping[str, str], etc_apt: Path = Path("/etc/apt")
) -> list[AptSource]:
    """Sources of ``suite`` (main only). A host on another Debian release lends its mirrors.

    Raises HostSetupError when the machine has no Debian mirror.
    """
    named = env.get(SOURCES_VARIABLE)
    files = (
        [Path(named)] if named else [etc_apt / "sources.list", *_sorted(etc_apt / "sources.list.d")]
    )
    main = [
        replace(source, components=("main",))
        for path in files
        for source in _read(path)
        if "main" in source.components and _debian_key(source)
    ]
    wanted = [source for source in main if _release(source.suite) == suite]
    if not wanted:
        wanted = [_moved(source, suite) for source in main if _archive(source)]
    if not wanted:
        raise HostSetupError(
            f"no Debian mirror in {etc_apt}; write one in the format of sources.list(5) and name "
            f"the file in {SOURCES_VARIABLE}"
        )
    return list(dict.fromkeys(wanted))


def _sorted(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.suffix in {".list", ".sources"})


def _read(path: Path) -> Iterator[AptSource]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    deb822 = path.suffix == ".sources" or re.search(
        r"^Types\s*:", text, re.MULTILINE | re.IGNORECASE
    )
    yield from _read_deb822(text) if deb822 else _read_one_line(text)


def _read_one_line(text: str) -> Iterator[AptSource]:
    for line in text.splitlines():
        match = _ONE_LINE.fullmatch(line.partition("#")[0].strip())
        if match is None:
            continue
        options = dict(word.partition("=")[::2] for word in (match["options"] or "").split())
        yield AptSource(
            uri=match["uri"],
            suite=match["suite"],
            components=tuple(match["components"].split()),
            signed_by=options.get("signed-by"),
            trusted=options.get("trusted") == "yes",
        )


def _read_deb822(text: str) -> Iterator[AptSource]:
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", kept):
        fields = _fields(stanza)
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes") == "no":
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield AptSource(
                    uri=uri,
                    suite=suite,
                    components=tuple(fields.get("components", "").split()),
                    signed_by=fields.get("signed-by") or None,
                    trusted=fields.get("trusted") == "yes",
                )


def _fields(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    key = ""
    for line in stanza.splitlines():
        if line[:1] in {" ", "\t"} and key:
            fields[key] += "\n" + line
        elif ":" in line:
            key, _, value = line.partition(":")
            key = key.strip().lower()
            fields[key] = value.strip()
    return fields


def _debian_key(source: AptSource) -> bool:
    """False for a vendor's repository that is pinned to the vendor's own keyring."""
    path = source.signed_by or ""
    return not path.startswith("/") or "debian" in path.rpartition("/")[2]


def _release(suite: str) -> str:
    for pocket in _POCKETS[1:]:
        suite = suite.removesuffix(pocket)
    return suite


def _archive(source: AptSource) -> bool:
    known = any(source.suite == _release(source.suite) + pocket for pocket in _POCKETS)
    return known and source.uri.rstrip("/").rpartition("/")[2] in _ARCHIVES


def _moved(source: AptSource, suite: str) -> AptSource:
    return replace(source, suite=suite + source.suite.removeprefix(_release(source.suite)))
