"""Certificates for tests, made by openssl."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def program(name: str) -> str:
    """The path of a program; where it is missing the test is skipped, unless GPUDASH_REQUIRE_WINDOW asks for all."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("GPUDASH_REQUIRE_WINDOW"):
            pytest.fail(f"{name} is not installed, and GPUDASH_REQUIRE_WINDOW asks for the tests that need it")
        pytest.skip(f"{name} is not installed")
    return found


def certificate(folder: Path, name: str = "server", passphrase: str = "") -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 signed by itself, and its key."""
    folder.mkdir(parents=True, exist_ok=True)
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    locked = ["-passout", f"pass:{passphrase}"] if passphrase else ["-nodes"]
    command = [program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-days", "36500", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *locked, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    key.chmod(0o600)
    return cert, key
