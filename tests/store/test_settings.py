"""Settings: where they come from, and that a mistake is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from aenv.models.errors import InvalidRequestError
from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.store.settings import load_settings


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    (tmp_path / "config").mkdir()
    return Folders(tmp_path / "data", tmp_path / "cache", tmp_path / "config", tmp_path / "run")


def load(
    folders: Folders,
    text: str = "",
    env: Mapping[str, str] | None = None,
    **overrides: object,
) -> Settings:
    (folders.config / "config.toml").write_text(text)
    return load_settings(folders, overrides, env)


def test_nothing_configured_gives_the_defaults(folders: Folders) -> None:
    assert load_settings(folders) == Settings(folders)


def test_the_command_line_beats_the_environment_beats_the_file(folders: Folders) -> None:
    text = 'port = 1\nhost = "a"\ndomain = "file.test"\n'

    settings = load(folders, text, {"AENV_PORT": "2", "AENV_HOST": "b"}, port=3)

    assert (settings.port, settings.host, settings.domain) == (3, "b", "file.test")


def test_nested_settings_are_tables_variables_and_dotted_keys(folders: Folders) -> None:
    text = "[quotas]\nsandboxes = 3\n[egress]\nprivate_allow = ['10.0.0.1/32:443']\n"
    env = {"AENV_DEFAULTS_MEMORY_MB": "512", "AENV_EGRESS_DNS_UPSTREAMS": "1.1.1.1, 9.9.9.9"}

    settings = load(folders, text, env, **{"defaults.cpu": 1})

    assert settings.quotas.sandboxes == 3
    assert settings.egress.private_allow == ("10.0.0.1/32:443",)
    assert settings.egress.dns_upstreams == ("1.1.1.1", "9.9.9.9")
    assert (settings.defaults.memory_mb, settings.defaults.cpu) == (512, 1.0)


def test_unset_overrides_and_empty_variables_change_nothing(folders: Folders) -> None:
    assert load(folders, "", {"AENV_PORT": ""}, host=None) == Settings(folders)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", r"unknown setting 'prot'.*config.toml; did you mean 'port'"),
        ("[quota]\nsandboxes = 1", r"did you mean 'quotas.sandboxes'"),
        ("port = '80'", "'port' in .* must be a whole number, not '80'"),
        ("port = true", "must be a whole number"),
        ("port = 70000", "'port' must be 0 to 65535"),
        ("quotas = 3", "unknown setting 'quotas'"),
        ("port = ", "cannot be read"),
        ("subnet = 'abc'", "'subnet' must be an IPv4 network"),
        ("pool_mb = -1", "'pool_mb' must not be negative"),
        ("hot_memory_mb = -1", "'hot_memory_mb' must not be negative"),
        ("idle_exit = nan", "'idle_exit' must be a positive number"),
        ("[defaults]\nmemory_mb = 1", "'defaults.memory_mb' must be at least 64"),
        ("[defaults]\ncpu = nan", "'defaults.cpu' must be at least"),
        ("[egress]\nprivate_allow = ['host:80']", "'egress.private_allow' holds 'host:80'"),
        ("[egress]\nprivate_allow = [1]", "must be a list of texts"),
        ("[tls]\ncert = 'x'", "'tls.cert' and 'tls.key' go together"),
        ("public_url = 'example.com'", "must start with http"),
        ("[store]\nfolder = 'here'", "'store.folder' must be an absolute path"),
        ("[store]\nfolder = '/a'\nbucket = 'b'", "'store.bucket' exclude each other"),
        ("[store]\nendpoint = 'http://a'", "'store.endpoint' is of use with 'store.bucket' only"),
        ("[store]\nbucket = 'b'\nendpoint = 'a:9000'", "'store.endpoint' must start with http"),
        ("[store]\nbucket = 'b'\naccess_key_id = 'k'", "go together: give both"),
        ("domain = 'a/b'", "must be a bare name"),
    ],
)
def test_a_mistake_in_the_file_is_named(folders: Folders, text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        load(folders, text)


def test_a_misspelt_variable_is_named_and_strangers_are_left_alone(folders: Folders) -> None:
    with pytest.raises(InvalidRequestError, match="AENV_POTR; did you mean AENV_PORT"):
        load(folders, env={"AENV_POTR": "1"})

    strangers = {"AENV_SYSTEM_URL": "x", "AENV_DATA_DIR": "y", "AENV_SOMETHING_ELSE": "z"}
    assert load(folders, env=strangers) == Settings(folders)


@pytest.mark.parametrize("key", ["k", "two words", "~" * 512])
def test_a_key_is_any_string_that_a_header_carries(folders: Folders, key: str) -> None:
    assert load(folders, env={"AENV_API_KEY": key}).api_key == key


@pytest.mark.parametrize("key", [" leading", "trailing ", "line\nend", "gr\u00fcn", "~" * 513])
def test_a_refused_key_is_not_shown(folders: Folders, key: str) -> None:
    with pytest.raises(InvalidRequestError, match="'api_key' must be 1 to 512") as caught:
        load(folders, env={"AENV_API_KEY": key})
    assert key.strip() not in str(caught.value)


def test_keys_of_the_blob_store_are_not_shown(folders: Folders) -> None:
    text = "[store]\nbucket = 'b'\naccess_key_id = 'k'\n"
    settings = load(folders, text, {"AENV_STORE_SECRET_ACCESS_KEY": "s3cr3t"})
    assert settings.store.secret_access_key == "s3cr3t"
    assert "s3cr3t" not in repr(settings)
    with pytest.raises(InvalidRequestError, match="not its value") as caught:
        load(folders, "[store]\nsecret_access_key = 12345\n")
    assert "12345" not in str(caught.value)


def test_an_unknown_override_is_an_error(folders: Folders) -> None:
    with pytest.raises(InvalidRequestError, match=r"'hots' in the command line.*'host'"):
        load(folders, hots="x")
