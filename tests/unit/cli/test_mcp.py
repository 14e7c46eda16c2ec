"""``gpudash mcp`` before a client is there: without its package, and with a root that is none."""

from __future__ import annotations

import sys

import pytest

from gpudash.cli import run


@pytest.fixture
def without_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol's package is not installed, as far as an import can tell."""
    monkeypatch.setitem(sys.modules, "mcp", None)


@pytest.mark.usefixtures("without_sdk")
def test_without_its_package_the_command_says_how_to_install_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mcp"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "gpudash mcp needs the package mcp, which is not installed. Install it with: pip install 'gpudash[mcp]'\n"
    )


def test_a_package_that_is_too_old_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert run(["mcp"]) == 2
    assert "needs the package mcp in version 2.3 or later. Install it with: pip" in capsys.readouterr().err


def test_a_root_that_is_not_there_is_refused_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mcp", "--root", "nowhere"]) == 2
    assert capsys.readouterr().err == "There is no folder nowhere to be the root. Name one that is there.\n"
