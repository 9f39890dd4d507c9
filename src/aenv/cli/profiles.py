"""``auth`` and ``config``: credentials and settings."""

from __future__ import annotations

import json
import os
import tempfile
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from aenv.cli.apps import SERVER, SIGNED, app, common, is_tty, new_app, subcommand
from aenv.cli.outputs import emit, emit_json, note, table

auth = new_app(help="Which server and key the CLI and SDK use: show, set, remove.")
config = new_app(help="The settings of a server on this machine: show, get, set, path.")
app.add_typer(auth, name="auth", rich_help_panel=SERVER)
app.add_typer(config, name="config", rich_help_panel=SERVER)


@subcommand(auth, "show")
def show_auth(
    key: Annotated[bool, typer.Option("--key", help="Print only the key in use.")] = False,
    url: Annotated[bool, typer.Option("--show-url", help="Print only the URL in use.")] = False,
) -> None:
    """Show the profiles, keys hidden; with --key the key that would be used now."""
    from aenv.models.folders import Folders
    from aenv.sdk.endpoints import read_profiles

    if key or url:
        endpoint = _endpoint()
        emit((endpoint.api_key or "") if key else endpoint.url)
        return
    profiles = read_profiles(Folders.resolve())
    shown = [
        {"name": name, "url": p.url, "api_key": _hidden(p.api_key), "instance": p.instance}
        for name, p in sorted(profiles.items())
    ]
    if common.json:
        emit_json(shown)
        return
    rows = [
        (s["name"], s["url"], s["api_key"], "a server here" if s["instance"] else "you")
        for s in shown
    ]
    table(("profile", "url", "key", "made by"), rows)


@subcommand(auth, "set")
def set_auth(
    name: Annotated[str, typer.Argument(metavar="[PROFILE]")] = "default",
) -> None:
    """Store --url and --api-key as a profile (file mode 0600); asks for what is missing."""
    from aenv.sdk.endpoints import checked

    profile = common.profile or name
    if not is_tty(0) and not (common.url and common.api_key):
        raise typer.BadParameter("without a terminal it needs --url URL and --api-key KEY")
    url = checked(common.url or typer.prompt("Server URL", err=True))
    api_key = common.api_key or typer.prompt("API key", hide_input=True, err=True)
    _change(lambda profiles: profiles.update({profile: {"url": url, "api_key": api_key}}))
    if common.json:
        emit_json({"profile": profile, "url": url})
    else:
        note(f"profile {profile} now means {url}")


@subcommand(auth, "remove")
def remove_auth(name: Annotated[str, typer.Argument(metavar="PROFILE")]) -> None:
    """Forget a profile."""
    from aenv.models.errors import NotFoundError

    def remove(profiles: dict[str, Any]) -> None:
        if profiles.pop(name, None) is None:
            raise NotFoundError(f"there is no profile {name!r}; aenv auth show lists them")

    _change(remove)
    if common.json:
        emit_json({"removed": name})


@subcommand(config, "show")
def show_config() -> None:
    """Show every setting and its value, defaults included."""
    values = _settings()
    if common.json:
        emit_json(values)
    else:
        table(("setting", "value"), [(key, _toml(value)) for key, value in values.items()])


@subcommand(config, "get")
def get_config(key: Annotated[str, typer.Argument(metavar="KEY")]) -> None:
    """Print one setting's value, the default included."""
    values = _settings()
    if key not in values:
        near = get_close_matches(key, values, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise typer.BadParameter(f"there is no setting {key!r}{hint}")
    value = values[key]
    if common.json:
        emit_json({key: value})
    else:
        emit(value if isinstance(value, str) else _toml(value))


@subcommand(config, "set", context_settings=SIGNED)
def set_config(
    key: Annotated[str, typer.Argument(metavar="KEY")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Lists: comma-separated.")],
) -> None:
    """Write a setting to the configuration file; a server reads it at its next start."""
    from aenv.cli import settings_files

    settings_files.write(key, value)
    if common.json:
        emit_json({"set": key})
    else:
        note(f"{key} is set; it holds from the server's next start (aenv down, aenv up)")


@subcommand(config, "path")
def path() -> None:
    """Show where files live."""
    from aenv.models.folders import Folders

    folders = Folders.resolve()
    places = {
        "data": folders.data,
        "cache": folders.cache,
        "config": folders.config,
        "run": folders.run,
        "settings": folders.config / "config.toml",
        "credentials": folders.credentials,
        "log": folders.data / "server.log",
    }
    if common.json:
        emit_json(places)
    else:
        table(("what", "path"), list(places.items()))


def _endpoint() -> Any:
    """The server that would be used now; none is started."""
    from aenv.models.errors import NotFoundError
    from aenv.models.folders import Folders
    from aenv.sdk import endpoints, local_servers

    folders = Folders.resolve()
    found = endpoints.resolve(**common.server) or local_servers.find(
        folders, api_key=common.api_key or os.environ.get("AENV_API_KEY")
    )
    if found is not None:
        return found
    profiles = endpoints.read_profiles(folders)
    known = profiles.get(folders.instance) or profiles.get(endpoints.DEFAULT_PROFILE)
    if known is None:
        raise NotFoundError("no server is known here yet; start one with: aenv up")
    return known.endpoint()


def _change(change: Any) -> None:
    """Replace the credentials file at once, under the lock that servers use too."""
    import fcntl

    from aenv.models.folders import Folders
    from aenv.sdk.endpoints import read_profiles

    folders = Folders.resolve()
    read_profiles(folders)  # a damaged file is reported, not replaced
    target = folders.credentials
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(target.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = json.loads(target.read_text()) if target.exists() else {"profiles": {}}
        change(content["profiles"])
        _replace(target, json.dumps(content, indent=2) + "\n")


def _replace(target: Path, text: str) -> None:
    """It is never readable by others, not even for a moment."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _hidden(key: str | None) -> str:
    return f"{key[:6]}…" if key else "-"


def _settings() -> dict[str, Any]:
    from aenv.cli import settings_files

    return settings_files.read()


def _toml(value: Any) -> str:
    return "-" if value is None else json.dumps(value, default=str)
