"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.programs import program


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
