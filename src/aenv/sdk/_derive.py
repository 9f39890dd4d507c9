"""Derives the sync face from the async classes: ``python -m aenv.sdk._derive`` writes ``_sync.py``.

Only signatures, docstrings and types are read; every sync method runs the async one on the loop
thread. A test fails when the written file is not what this module would write.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE / "_sync.py"
PARTS = ("running.py", "lifecycles.py")
SOURCES = (
    *("watches.py", "processes.py", "files.py", "snapshots.py", "templates.py"),
    *("volumes.py", "sandboxes.py"),
)
HEAD = '''"""The sync face, derived from the async one: ``python -m aenv.sdk._derive`` writes it."""

from __future__ import annotations

import builtins
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

from aenv.models.sandboxes import NetworkPolicy, SandboxMetrics
from aenv.sdk._loops import iterate, run, threaded
from aenv.sdk.archives import Progress
from aenv.sdk.building import BuiltTemplate
from aenv.sdk.events import OutputCallback, ProcessEvent
from aenv.sdk.files import AsyncFiles
from aenv.sdk.launches import LOGIN_SHELL, Command, SignalName
from aenv.sdk.processes import AsyncProcess
from aenv.sdk.results import (
    CommandResult,
    EntryInfo,
    FileEvent,
    LogLine,
    ProcessInfo,
    SandboxInfo,
)
from aenv.sdk.sandboxes import AsyncSandbox
from aenv.sdk.snapshots import AsyncSnapshot, SnapshotInfo
from aenv.sdk.templates import AsyncTemplate
from aenv.sdk.volumes import AsyncVolume, VolumeFile, VolumeInfo
from aenv.sdk.watches import AsyncWatch
'''
_DUNDERS = {"__aiter__": "__iter__", "__aenter__": "__enter__", "__aexit__": "__exit__"}
_REPR = """    def __repr__(self) -> str:
        return repr(self._core).removeprefix("Async")
"""
_CALLBACKS = ("on_stdout", "on_stderr", "on_log")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def derive() -> str:
    """The text of ``_sync.py`` before formatting."""
    parts = [HEAD]
    for source in SOURCES:
        parts += map(_class, _async_classes(HERE / source))
    return "\n\n".join(parts)


def _async_classes(source: Path) -> list[ast.ClassDef]:
    nodes = ast.parse(source.read_text()).body
    return [n for n in nodes if isinstance(n, ast.ClassDef) and n.name.startswith("Async")]


def _class(node: ast.ClassDef) -> str:
    name = _sync(node.name)
    lines = [f"class {name}:", _docstring(node, 4), f"    _core: {node.name}\n"]
    functions = [f for part in (node, *_bases(node)) for f in part.body if isinstance(f, Function)]
    create = next((f for f in functions if f.name == "create"), None)
    if create is not None:
        lines += [_constructor(node.name, create)]
    lines += [_wrapper(node.name)]
    for function in functions:
        if not function.name.startswith("_") or function.name in _DUNDERS:
            lines.append(_method(node.name, function))
    lines.append(_REPR)
    return "\n".join(lines)


def _bases(node: ast.ClassDef) -> list[ast.ClassDef]:
    """Parts of a class that live in a module of their own."""
    names = {base.id for base in node.bases if isinstance(base, ast.Name)}
    parts = [part for module in PARTS for part in ast.parse((HERE / module).read_text()).body]
    return [p for p in parts if isinstance(p, ast.ClassDef) and p.name in names]


def _constructor(core: str, create: Function) -> str:
    """``Sandbox(…)`` makes one, as ``Sandbox.create(…)`` does."""
    arguments = _arguments(create).replace("cls", "self", 1)
    call = f"run({core}.create({_forwarded(create)}))"
    doc = _docstring(create, 8)
    return f"    def __init__({arguments}) -> None:\n{doc}\n        self._core = {call}\n"


def _wrapper(core: str) -> str:
    name = _sync(core)
    return (
        "    @classmethod\n"
        f"    def _of(cls, core: {core}) -> {name}:\n"
        "        made = cls.__new__(cls)\n"
        "        made._core = core\n"
        "        return made\n"
    )


def _method(core: str, function: Function) -> str:
    kinds = {d.id for d in function.decorator_list if isinstance(d, ast.Name)}
    lines = [f"    @{kind}" for kind in ("classmethod", "property") if kind in kinds]
    returns = ast.unparse(function.returns) if function.returns else "None"
    name = _DUNDERS.get(function.name, function.name)
    lines.append(f"    def {name}({_arguments(function)}) -> {_sync_type(returns)}:")
    lines.append(_docstring(function, 8))
    lines += [f"        {line}" for line in _body(core, function, returns, kinds)]
    return "\n".join(line for line in lines if line) + "\n"


def _body(core: str, function: Function, returns: str, kinds: set[str]) -> list[str]:
    if function.name == "__aenter__":
        return ["return self"]
    owner = core if "classmethod" in kinds else "self._core"
    call = f"{owner}.{function.name}"
    if "property" not in kinds:
        call += f"({_forwarded(function)})"
    if returns.startswith("AsyncGenerator["):
        return [f"return iterate({call})"]
    if isinstance(function, ast.AsyncFunctionDef):
        call = f"run({call})"
    if match := re.fullmatch(r"builtins\.list\[Async(\w+)\]", returns):
        return [f"return [{match[1]}._of(core) for core in {call}]"]
    if match := re.fullmatch(r"Async(\w+)", returns):
        maker = "cls" if "classmethod" in kinds else match[1]
        return [f"return {maker}._of({call})"]
    return [call if returns == "None" else f"return {call}"]


def _arguments(function: Function) -> str:
    return _sync_type(ast.unparse(function.args))


def _forwarded(function: Function) -> str:
    positional = [argument.arg for argument in function.args.args[1:]]
    named = [argument.arg for argument in function.args.kwonlyargs]
    return ", ".join(
        [_value(name) for name in positional] + [f"{name}={_value(name)}" for name in named]
    )


def _value(name: str) -> str:
    return f"threaded({name})" if name in _CALLBACKS else name


def _docstring(node: ast.ClassDef | Function, indent: int) -> str:
    text = ast.get_docstring(node, clean=False)
    if text is None:
        return ""
    return " " * indent + f'"""{text.replace("Async", "")}"""'


def _sync_type(text: str) -> str:
    text = re.sub(r"\bAsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]", text)
    return re.sub(r"\bAsync(\w+)", r"\1", text)


def _sync(name: str) -> str:
    return name.removeprefix("Async")


def formatted(text: str) -> str:
    """Through ruff, as every file of ours."""
    return subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


if __name__ == "__main__":
    TARGET.write_text(formatted(derive()))
