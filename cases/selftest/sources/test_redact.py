"""Credentials of index addresses: never in a message, a log or a representation."""

import logging
from pathlib import Path

import pytest
from packaging.version import Version

from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.errors import MachineError
from deepstack_harness.sources.index import Index
from deepstack_harness.sources.pip_settings import PipSettings, Redactor

SECRET = "s3cr3t"
ADDRESSES = {
    "https": f"https://user:{SECRET}@host.invalid/simple",
    "token alone": f"https://{SECRET}@host.invalid/simple",
    "file": f"file://user:{SECRET}@host.invalid/wheels",
    "quoted": f"https://user:{SECRET}%2Fmore@host.invalid/simple",
    "slash": f"https://user:a/{SECRET}@host.invalid/simple",
    "at": f"https://user:a@{SECRET}@host.invalid/simple",
    "colon": f"https://user:a:{SECRET}@host.invalid/simple",
    "quote": f"https://user:a'{SECRET}@host.invalid/simple",
    "port": f"https://user:{SECRET}@host.invalid:notaport/simple",
    "query": f"https://host.invalid/simple?token={SECRET}",
    "other scheme": f"git+ssh://user:{SECRET}@host.invalid/repository",
}


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES)
def test_an_address_is_shown_without_credentials(address: str) -> None:
    shown = Redactor([address])(f"cannot read {address}, is it there?")
    assert SECRET not in shown
    assert "host.invalid" in shown
    assert shown.startswith("cannot read ")


def test_an_unknown_address_is_hidden_too() -> None:
    shown = Redactor()(f"see https://user:{SECRET}@host.invalid/x.whl?signature={SECRET}#sha256=0 for more")
    assert shown == "see https://***@host.invalid/x.whl?*** for more"


def test_a_password_is_hidden_on_its_own_also_unquoted() -> None:
    redact = Redactor([f"https://user:{SECRET}%40more@host.invalid"])
    assert SECRET not in redact(f"'{SECRET}@more' was refused for user, {SECRET}%40more too")


def test_what_has_no_credentials_is_shown_as_it_is() -> None:
    text = "https://host.invalid:8080/simple and file:///wheels/vllm cannot be reached (no user@host)"
    assert Redactor(["https://host.invalid:8080/simple"])(text) == text


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES)
@pytest.mark.parametrize("place", ["index_url", "find_links"])
def test_no_look_up_prints_a_credential(
    address: str, place: str, logged: list[logging.LogRecord], capfd: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    settings = (
        PipSettings(index_url=address, proxy="http://127.0.0.1:9")
        if place == "index_url"
        else PipSettings(no_index=True, find_links=(address,), proxy="http://127.0.0.1:9")
    )
    with pytest.raises(MachineError) as caught:
        Index(VLLM.package, settings).find(Version("0.22.1"))
    assert SECRET not in str(caught.value)
    warned = [record.getMessage() for record in logged if record.levelno >= logging.WARNING]
    assert not [text for text in warned if SECRET in text]
    assert SECRET not in repr(settings)
    assert SECRET not in "".join(capfd.readouterr())


def test_a_folder_of_another_host_is_the_machines_fault_and_hides_its_password(tmp_path: Path) -> None:
    settings = PipSettings(no_index=True, find_links=(f"file://user:{SECRET}@elsewhere{tmp_path}",))
    with pytest.raises(MachineError, match=r"non-local file URIs .*'file://\*\*\*@elsewhere") as caught:
        Index(VLLM.package, settings).find(Version("0.22.1"))
    assert SECRET not in str(caught.value)
