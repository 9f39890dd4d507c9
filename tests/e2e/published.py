"""Running the scenarios of ``clients/`` with the published SDKs (installed by scripts/clients)."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.e2e.servers import REPOSITORY, LiveServer

CLIENTS = Path(__file__).parent / "clients"
VENVS = REPOSITORY / ".venvs"
RUN_TIMEOUT = 900


@dataclass(frozen=True)
class Client:
    """``command`` runs the scenarios of the modules named after it; ``modules`` in order."""

    name: str
    command: tuple[str, ...]
    folder: Path
    modules: tuple[str, ...]

    def scenarios(self) -> Iterator[str]:
        for module in self.modules:
            if self.folder.name == "python":
                yield from _python_scenarios(self.folder / f"{module}.py")
            else:
                yield from _node_scenarios(self.folder / f"{module}.mjs")

    def run(self, server: LiveServer, web: str) -> dict[str, str | None]:
        """Scenario → what went wrong, or None."""
        done = subprocess.run(
            [*self.command, *self.modules],
            cwd=self.folder,
            env=server.client_env
            | {"AENV_E2E_WEB": web, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT,
        )
        outcomes = {}
        for line in done.stdout.splitlines():
            if line.startswith('{"name"'):
                found = json.loads(line)
                outcomes[found["name"]] = found["error"]
        if done.returncode != 0:
            said = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            raise AssertionError(f"{self.name} gave up:\n{said}")
        return outcomes


def _python_client(version: str) -> Client:
    folder = CLIENTS / "python"
    python = str(VENVS / f"e2b-{version}" / "bin" / "python")
    modules = tuple(sorted(path.stem for path in folder.glob("*.py") if path.stem != "scenarios"))
    return Client(f"e2b-{version}", (python, "scenarios.py"), folder, modules)


def _node_client(version: str) -> Client:
    folder = CLIENTS / "node"
    home = VENVS / f"npm-e2b-{version}"
    modules = tuple(
        sorted(path.stem for path in folder.glob("*.mjs") if path.stem not in ("run", "scenarios"))
    )
    command = (str(home / "node"), "run.mjs", str(home))
    return Client(f"npm-e2b-{version}", command, folder, modules)


ALL = (_python_client("2.63.0"), _python_client("2.45.0"), _node_client("2.51.0"))


@cache
def _python_scenarios(path: Path) -> tuple[str, ...]:
    return tuple(
        f"{path.stem}.{node.name}"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and "scenario" in {ast.unparse(mark) for mark in node.decorator_list}
    )


@cache
def _node_scenarios(path: Path) -> tuple[str, ...]:
    names = re.findall(r"^scenario\('([a-z0-9_]+)'", path.read_text(), re.MULTILINE)
    return tuple(f"{path.stem}.{name}" for name in names)
