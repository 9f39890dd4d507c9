"""The TLS listener with a wildcard domain: ``get_host`` and all of the SDK over https, by host
names alone.

``*.sbx.test`` is resolved by a hosts file in a mount namespace of the client's own, since parts of
the published clients resolve names below Python.
"""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.e2e.published import VENVS
from tests.e2e.servers import LiveServer, free_port
from tests.e2e.wire import Wire

MakeServer = Callable[..., LiveServer]

SCRIPT = """
import json, sys, time, urllib.error, urllib.request
from e2b import Sandbox

sandbox = Sandbox.create("base", timeout=120)
with open("/etc/hosts", "a") as hosts:
    for port in (49983, 8123):
        hosts.write(f"127.0.0.1 {sandbox.get_host(port).partition(':')[0]}\\n")
sandbox.files.write("/home/user/page.txt", "over tls")
said = sandbox.commands.run("cat page.txt").stdout
sandbox.commands.run("python3 -m http.server 8123", background=True)
url = f"https://{sandbox.get_host(8123)}/page.txt"
deadline = time.monotonic() + 20
while True:
    try:
        page = urllib.request.urlopen(url, timeout=5).read().decode()
        break
    except urllib.error.HTTPError as error:  # 502 until it listens
        assert error.code == 502 and time.monotonic() < deadline, error
        time.sleep(0.05)
with urllib.request.urlopen(sandbox.download_url("page.txt"), timeout=5) as signed:
    download = signed.read().decode()
sandbox.kill()
print(json.dumps([url, said, page, download, sandbox.is_running()]))
"""


@pytest.fixture
def secure(make_server: MakeServer) -> Iterator[LiveServer]:
    server = make_server(AENV_DOMAIN="sbx.test", AENV_TLS_PORT=str(free_port()))
    server.start()
    return server


@pytest.mark.parametrize("version", ["2.63.0", "2.45.0"])
def test_the_sdk_needs_only_the_domain(secure: LiveServer, tmp_path: Path, version: str):
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
    (tmp_path / "client.py").write_text(SCRIPT)
    python = VENVS / f"e2b-{version}" / "bin" / "python"
    env = secure.client_env | {"SSL_CERT_FILE": str(_authority(secure))}
    del env["E2B_SANDBOX_URL"]
    isolated = f"mount --bind {tmp_path / 'hosts'} /etc/hosts && exec {python} client.py"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", isolated],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    url, *said, runs = json.loads(done.stdout.splitlines()[-1])
    assert url.startswith("https://8123-")
    assert url.endswith(f".sbx.test:{secure.settings['AENV_TLS_PORT']}/page.txt")
    assert said == ["over tls"] * 3
    assert runs is False


def test_the_control_plane_is_there_too_and_plain_http_stays(secure: LiveServer):
    context = ssl.create_default_context(cafile=str(_authority(secure)))
    context.check_hostname = False
    url = f"https://127.0.0.1:{secure.settings['AENV_TLS_PORT']}"
    with httpx.Client(verify=context, headers={"X-API-Key": secure.api_key}) as http:
        assert http.get(f"{url}/health").status_code == 204
        assert http.get(f"{url}/v2/sandboxes").json() == []
    assert Wire(secure).ids() == set()


def _authority(server: LiveServer) -> Path:
    return server.folder / "data" / "tls" / "ca.pem"
