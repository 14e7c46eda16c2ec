"""``--download-config``: one file of a Hub into the cache, and a sentence for each way in which that goes wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from gpudash.cli.estimate.download import MOST_BYTES, download_config
from gpudash.cli.terminal.output import RequestError
from gpudash.specs.model_names import find_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = json.dumps({"model_type": "llama", "hidden_size": 64}).encode()


class Hub(BaseHTTPRequestHandler):
    """A Hub of one model, acme/zzyzx, and of others that fail each in their way."""

    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        Hub.asked.append(f"{self.command} {self.path}")
        name = self.path.split("/resolve/")[0].strip("/")
        code = {"acme/zzyzx": 200, "acme/huge": 200, "acme/gated": 403, "acme/empty": 404, "acme/broken": 418}
        self.send_response(code.get(name, 401))
        reasons = {"acme/gated": "GatedRepo", "acme/empty": "EntryNotFound", "acme/none": "RepoNotFound"}
        if name in reasons:
            self.send_header("X-Error-Code", reasons[name])
        size = MOST_BYTES + 1 if name == "acme/huge" else len(CONFIG)
        self.send_header("ETag", '"abc"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(size if name in ("acme/zzyzx", "acme/huge") else 0))
        self.end_headers()
        if with_body and name == "acme/zzyzx":
            self.wfile.write(CONFIG)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The requests that the Hub was asked."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    Hub.asked = []
    yield Hub.asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_config_alone_is_fetched_into_the_cache_and_only_once(hub: list[str]) -> None:
    download_config("acme/zzyzx")
    folder = find_model("acme/zzyzx")
    assert (folder / "config.json").read_bytes() == CONFIG
    assert {path.name for path in folder.iterdir()} == {"config.json"}
    asked = list(Hub.asked)
    assert asked and all(one.endswith("/acme/zzyzx/resolve/main/config.json") for one in asked)
    download_config("acme/zzyzx")
    assert Hub.asked == asked, "what is here is not asked for"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("acme/huge", f"is of {MOST_BYTES + 1:,} bytes"),
        ("acme/gated", "is given only to those who have accepted its terms"),
        ("acme/empty", "acme/empty has no config.json on http://127.0.0.1"),
        ("acme/none", "has no model acme/none, or it is private"),
        ("acme/broken", "answered 418 when it was asked for acme/broken"),
        ("acme/../x", "needs a model's name on the Hub"),
        ("acme/a--b..c", "is no name that a model can have on the Hub"),
    ],
)
def test_each_failure_is_one_sentence_and_leaves_nothing(
    hub: list[str], tmp_path: Path, name: str, sentence: str
) -> None:
    with pytest.raises(RequestError) as refused:
        download_config(name)
    assert sentence in str(refused.value) and "\n" not in str(refused.value)
    assert not list((tmp_path / "hub").glob("models--*/snapshots/*/*"))


def test_a_hub_that_is_not_there_and_one_that_may_not_be_asked_are_said(
    hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RequestError, match=r"http://127\.0\.0\.1:9 could not be asked for acme/zzyzx"):
        download_config("acme/zzyzx")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RequestError, match="HF_HUB_OFFLINE is set"):
        download_config("acme/zzyzx")
    download_config("Qwen2.5-7B")  # a usual model, whose config is here
    assert hub == []
