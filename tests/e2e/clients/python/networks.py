"""Egress rules as a guest sees them. ``AENV_E2E_WEB``: a server at a public-looking address."""

import os

from e2b import CommandExitException, Sandbox, SandboxException
from scenarios import raises, scenario

WEB = os.environ["AENV_E2E_WEB"]
ADDRESS = WEB.split("//")[1].split(":")[0]


def _reaches(sandbox: Sandbox, url: str = WEB) -> bool:
    try:
        sandbox.commands.run(f"curl -sS -m 4 -o /dev/null {url}", timeout=20)
    except CommandExitException:
        return False
    return True


@scenario
def the_internet_is_open_and_private_networks_are_not(sandbox: Sandbox):
    assert _reaches(sandbox)
    assert not _reaches(sandbox, "http://169.254.169.254/")
    assert not _reaches(sandbox, os.environ["E2B_API_URL"].replace("127.0.0.1", _gateway(sandbox)))


def _gateway(sandbox: Sandbox) -> str:
    found = sandbox.commands.run("ip route show default || cat /etc/resolv.conf").stdout.split()
    return next(word for word in found if word.count(".") == 3)


@scenario
def other_sandboxes_cannot_be_reached(sandbox: Sandbox):
    with Sandbox.create(timeout=60) as other:
        address = other.commands.run("hostname -I || hostname -i").stdout.split()[0]
        other.commands.run("python3 -m http.server 8000", background=True, timeout=0)
        assert not _reaches(sandbox, f"http://{address}:8000/")
        assert not _reaches(sandbox, f"http://{address}:49983/health")


@scenario
def without_internet_nothing_leaves():
    with Sandbox.create(timeout=60, allow_internet_access=False) as sandbox:
        assert not _reaches(sandbox)
        assert sandbox.commands.run("echo alive").stdout == "alive\n"


@scenario
def deny_and_allow_lists():
    with Sandbox.create(timeout=60, network={"deny_out": [ADDRESS]}) as sandbox:
        assert not _reaches(sandbox)
    rules = {"deny_out": ["0.0.0.0/0"], "allow_out": [ADDRESS]}
    with Sandbox.create(timeout=60, network=rules) as sandbox:
        assert _reaches(sandbox)


@scenario
def rules_are_replaced_while_it_runs(sandbox: Sandbox):
    assert _reaches(sandbox)
    sandbox.update_network({"deny_out": ["0.0.0.0/0"]})
    assert not _reaches(sandbox)
    assert sandbox.get_info().network["deny_out"] == ["0.0.0.0/0"]
    sandbox.update_network({})
    assert _reaches(sandbox)


@scenario
def what_cannot_be_enforced_is_refused_by_name(sandbox: Sandbox):
    rules = {"api.example.com": [{"transform": {"headers": {"X-A": "b"}}}]}
    error = raises(
        SandboxException, lambda: Sandbox.create(network={"allow_out": ["a.b"], "rules": rules})
    )
    assert "rules" in str(error) or "allowOut" in str(error)
    raises(SandboxException, lambda: sandbox.update_network({"deny_out": ["not an address"]}))
    raises(SandboxException, lambda: Sandbox.create(network={"deny_out": ["300.1.1.1/99"]}))


@scenario
def names_resolve(sandbox: Sandbox):
    assert "localhost" in sandbox.commands.run("getent hosts localhost").stdout
    name = sandbox.commands.run("hostname").stdout.strip()
    assert sandbox.commands.run(f"getent hosts {name}").stdout
