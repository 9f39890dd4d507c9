"""Write ``licenses/``: gVisor's licence and those of every module linked into a runsc binary.

Run it after moving the pin, on the machine where that runsc was compiled:

    python collect_licenses.py PATH/TO/runsc
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "licenses"
GVISOR = "gvisor.dev/gvisor"
_NAMES = re.compile(r"(LICEN[CS]E|COPYING|NOTICE)(\..+)?$", re.IGNORECASE)


def main() -> int:
    modules = _modules(sys.argv[1])
    cache = Path(_go("env", "GOMODCACHE").strip())
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "gvisor-LICENSE").write_text(_texts(cache, GVISOR, modules.pop(GVISOR)))
    parts = [
        f"{'=' * 79}\n{module} {version}\n{'=' * 79}\n\n{_texts(cache, module, version)}"
        for module, version in sorted(modules.items())
    ]
    library = Path(_go("env", "GOROOT").strip(), "LICENSE").read_text()
    parts.append(f"{'=' * 79}\nThe Go standard library\n{'=' * 79}\n\n{library}")
    (FOLDER / "THIRD_PARTY_LICENSES").write_text("\n".join(parts))
    return 0


def _modules(binary: str) -> dict[str, str]:
    lines = _go("version", "-m", binary).splitlines()
    words = [line.split() for line in lines]
    return {word[1]: word[2] for word in words if word and word[0] in {"mod", "dep"}}


def _texts(cache: Path, module: str, version: str) -> str:
    escaped = re.sub(r"[A-Z]", lambda match: "!" + match[0].lower(), module)
    folder = cache / f"{escaped}@{version}"
    found = [path for path in sorted(folder.iterdir()) if _NAMES.match(path.name)]
    if not found:
        raise SystemExit(f"{module} {version} has no licence file in {folder}")
    return "\n".join(path.read_text(errors="replace").strip() + "\n" for path in found)


def _go(*arguments: str) -> str:
    return subprocess.run(["go", *arguments], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
