"""What a fleet says of real servers that do not give what is wanted."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from gpudash.session.fleet import Fleet
from gpudash.sources.prometheus.address import read_address
from gpudash.system.settings import Settings
from tests.prometheus_server.exporter import exporter
from tests.prometheus_server.server import prometheus
from tests.unit.session.serving.certificates import certificate

BCRYPT = "$2b$12$hNf2lSsxfm0.i4a.1kVpSOVyBCfIB51VRjgBUyv6kdnyTlgWj81Ay"
"""Of a password that nobody uses, from Prometheus's own documentation of its web configuration."""


def problem(address: str) -> str | None:
    """What is wrong after one poll."""
    with closing(Fleet(read_address(address), settings=Settings())) as fleet:
        fleet.poll()
        return fleet.problem


def test_a_server_that_is_empty_and_one_that_is_down_are_told(tmp_path: Path) -> None:
    with prometheus(tmp_path, {}) as address:
        told = problem(address)
        assert told is not None and "knows no GPU" in told and "have it scrape one of these exporters" in told
    told = problem(address)
    assert told is not None and f"Nothing listens at {address}" in told


def test_an_exporter_instead_of_a_server_is_told() -> None:
    with exporter("# HELP DCGM_FI_DEV_FB_USED used\n# TYPE DCGM_FI_DEV_FB_USED gauge\nDCGM_FI_DEV_FB_USED 1\n") as page:
        told = problem(f"http://{page.address}")
    assert told is not None and "is an exporter, not a Prometheus server" in told


def test_a_certificate_that_is_not_trusted_and_a_server_that_is_protected_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path)
    config = tmp_path / "web.yml"
    config.write_text(
        f"tls_server_config: {{cert_file: {cert}, key_file: {key}}}\nbasic_auth_users: {{somebody: '{BCRYPT}'}}\n"
    )
    with prometheus(tmp_path, {}, options=[f"--web.config.file={config}"]) as plain:
        address = plain.replace("http:", "https:")
        told = problem(address)
        assert told is not None and f"The certificate of {address} does not hold" in told and "SSL_CERT_FILE" in told
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        told = problem(address)
        assert told is not None and "is protected: it asks for a token" in told
        monkeypatch.setenv("GPUDASH_PROMETHEUS_TOKEN", "secret")
        told = problem(address)
        assert told is not None and "the token does not open it" in told and "secret" not in told
        told = problem(plain)
        assert told is not None and "write https://" in told
