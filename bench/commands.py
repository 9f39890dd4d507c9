"""A command over each way in, beside the identical argv sent raw to the agent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from aenv import Sandbox
from bench import agents
from bench.harness import API_KEY, Row, Server, interleave, live_server, spread

LOGIN = ("/bin/bash", "-l", "-c", "true")
PUBLISHED = Path(".venvs/e2b-2.63.0/bin/python")
SCRIPT = """
import json, sys, time
from e2b import Sandbox
sandbox = Sandbox.connect(sys.argv[1])
for _ in range(5): sandbox.commands.run("true")
samples = []
for _ in range(int(sys.argv[2])):
    start = time.perf_counter()
    sandbox.commands.run("true")
    samples.append(time.perf_counter() - start)
print(json.dumps(samples))
"""


def run(runs: int) -> Iterator[Row]:
    with live_server() as server:
        sandbox = Sandbox.create("base", url=server.url, api_key=API_KEY)
        with sandbox:
            yield from _measure(server, sandbox, runs)


def _measure(server: Server, sandbox: Sandbox, runs: int) -> Iterator[Row]:
    detail = server.get(f"/sandboxes/{sandbox.id}")
    assert isinstance(detail, dict)
    agent = agents.connect(server, sandbox.id, detail["envdAccessToken"])
    samples = interleave(
        runs,
        true=lambda: agent.run("/bin/true"),
        login=lambda: agent.run(*LOGIN),
        sdk=lambda: sandbox.exec("true"),
        argv=lambda: sandbox.exec(["/bin/true"]),
    )
    figures = {name: spread([1000 * s for s in values]) for name, values in samples.items()}
    true, login = figures["true"], figures["login"]
    yield Row("commands", "raw to the agent: /bin/true", true["p50"], "ms", detail=true)
    yield Row("commands", "raw to the agent: bash -l -c true", login["p50"], "ms", detail=login)
    sdk = figures["sdk"]
    floor = login["p50"]
    yield Row("commands", "aenv SDK: exec('true')", sdk["p50"], "ms", floor, "≤ 1.3×", detail=sdk)
    argv = figures["argv"]
    yield Row(
        "commands", "aenv SDK: exec(['/bin/true'])", argv["p50"], "ms", true["p50"], detail=argv
    )
    if PUBLISHED.exists():
        published = _published(server, sandbox.id, runs)
        again = spread(
            [1000 * s for s in interleave(runs, login=lambda: agent.run(*LOGIN))["login"]]
        )
        yield Row(
            "commands",
            "E2B SDK: commands.run('true')",
            published["p50"],
            "ms",
            (floor + again["p50"]) / 2,
            "≤ 1.3×",
            detail=published,
        )
    cli = spread([1000 * s for s in interleave(5, cli=lambda: _cli(server, sandbox.id))["cli"]])
    yield Row("commands", "aenv exec ID true (whole process)", cli["p50"], "ms", floor, detail=cli)
    agent.close()


def _published(server: Server, sandbox_id: str, runs: int) -> dict[str, float]:
    env = server.env | {
        "E2B_API_KEY": API_KEY,
        "E2B_API_URL": server.url,
        "E2B_SANDBOX_URL": server.url,
    }
    command = [str(PUBLISHED), "-c", SCRIPT, sandbox_id, str(runs)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, timeout=300)
    return spread([1000 * sample for sample in json.loads(done.stdout)])


def _cli(server: Server, sandbox_id: str) -> None:
    where = ["--url", server.url, "--api-key", API_KEY]
    command = [sys.executable, "-m", "aenv.cli.main", "exec", *where, sandbox_id, "true"]
    subprocess.run(command, env=server.env, check=True, capture_output=True, timeout=60)
