"""Addresses of machines over ssh."""

from __future__ import annotations

import pytest

from gpudash.sources.ssh.address import SshHost, read_host


@pytest.mark.parametrize(
    ("text", "host", "arguments", "name"),
    [
        ("ssh://gpu-7", SshHost("gpu-7"), ["--", "gpu-7"], "gpu-7"),
        ("ssh:/gpu-7", SshHost("gpu-7"), ["--", "gpu-7"], "gpu-7"),
        ("ssh://me@gpu:22/", SshHost("gpu", "me", 22), ["-l", "me", "-p", "22", "--", "gpu"], "me@gpu:22"),
        ("ssh://DOMAIN\\me@gpu", SshHost("gpu", "DOMAIN\\me"), ["-l", "DOMAIN\\me", "--", "gpu"], "DOMAIN\\me@gpu"),
        ("ssh://[fe80::1%e]:22", SshHost("fe80::1%e", None, 22), ["-p", "22", "--", "fe80::1%e"], "[fe80::1%e]:22"),
        ("ssh://10.0.0.7", SshHost("10.0.0.7"), ["--", "10.0.0.7"], "10.0.0.7"),
    ],
    ids=["name", "path", "whole", "domain", "IPv6", "IPv4"],
)  # fmt: skip
def test_an_address_is_read_as_ssh_reads_it(text: str, host: SshHost, arguments: list[str], name: str) -> None:
    assert read_host(text) == host
    assert host.arguments == arguments and host.name == name
    assert read_host(str(host)) == host


@pytest.mark.parametrize(
    "text",
    [
        "ssh://-oProxyCommand=touch%20x",
        "ssh://-oProxyCommand=touch x",
        "ssh://me@-oProxyCommand=x",
        "ssh://-l@host",
        "ssh://[-oProxyCommand=x]",
        "ssh://host;touch x",
        "ssh://host$(x)",
        "ssh://host\nother",
        "ssh://host/folder",
        "ssh://",
        "ssh://@host",
        "http://host",
        "ssh://" + "a" * 300,
    ],
)
def test_what_ssh_could_take_for_anything_else_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="is no address of a machine over ssh") as refused:
        read_host(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("port", ["0", "65536", "x", "-1", "", "99999999999999999999", "٣"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(ValueError, match="is no port"):
        read_host(f"ssh://host:{port}")


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="A password does not belong") as refused:
        read_host("ssh://me:secret@host")
    assert "secret" not in str(refused.value)
