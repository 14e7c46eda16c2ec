"""Programs of the system that some tests need."""

from __future__ import annotations

import os
import shutil

import pytest


def program(*names: str) -> str:
    """The path of the first of ``names`` that is installed.

    Where none is the test is skipped, unless GPUDASH_REQUIRE_WINDOW asks for every test that a machine can be made for.
    """
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        if os.environ.get("GPUDASH_REQUIRE_WINDOW"):
            pytest.fail(f"{names[0]} is not installed, and GPUDASH_REQUIRE_WINDOW asks for the tests that need it")
        pytest.skip(f"{names[0]} is not installed")
    return found
