"""The flags that serve figures: how they are written, and what they are refused for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpudash.cli import build_app, run
from gpudash.cli.terminal.flags import ServeOptions
from gpudash.cli.terminal.output import RequestError
from tests.unit.session.serving.certificates import certificate


def options(*argv: str) -> ServeOptions:
    """What a command line says of serving."""
    _, bound, _ = build_app(argv).parse_args(list(argv), exit_on_error=False, print_error=False)
    found = bound.arguments.get("serving") or bound.arguments["options"]
    assert isinstance(found, ServeOptions)
    return found


WRITTEN = [
    (("--serve",), True),
    (("--serve", ":9500"), ":9500"),
    (("--serve=:9500",), ":9500"),
    (("--serve", "1"), "1"),
    (("--serve", "0.0.0.0:9500"), "0.0.0.0:9500"),
    (("--serve", "[::1]:9500"), "[::1]:9500"),
]


@pytest.mark.parametrize(("words", "address"), WRITTEN)
def test_serving_may_be_asked_for_with_an_address_and_without(words: Sequence[str], address: object) -> None:
    found = options("monitor", *words, "--no-record").serve
    assert (type(found), found) == (type(address), address)


@pytest.mark.parametrize(("words", "address"), WRITTEN[:2])
def test_runs_and_watched_programs_are_served_by_the_same_flags(words: Sequence[str], address: object) -> None:
    assert options("run", "training", *words, "--no-record").serve == address
    assert options("watch", *words, "--", "python", "train.py").serve == address


def test_a_flag_may_follow_serving_without_an_address() -> None:
    found = options("monitor", "--serve", "--serve-token-file", "token")
    assert found.serve is True
    assert found.serve_token_file == Path("token")


def test_nothing_is_served_unless_it_is_asked_for() -> None:
    with ServeOptions().served() as served:
        assert served.joined
        served.begin(None)  # type: ignore[arg-type]  # nothing asks it
        served.close()
    assert served.joined


@pytest.mark.parametrize("given", ["serve_token_file", "serve_cert", "serve_key"])
def test_guards_without_anything_to_guard_are_refused(given: str) -> None:
    with pytest.raises(RequestError, match="is for serving") as refusal, ServeOptions(**{given: Path("x")}).served():
        pass
    assert refusal.value.remedy == "Give --serve as well."


def test_an_empty_address_is_refused() -> None:
    with pytest.raises(RequestError, match="empty address"), ServeOptions(serve="").served():
        pass


@pytest.mark.process
def test_every_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    _, other = certificate(tmp_path, "other")
    open_token, empty_token = tmp_path / "open", tmp_path / "empty"
    open_token.write_text("0123456789abcdef0123", encoding="utf-8")
    open_token.chmod(0o644)
    empty_token.touch(0o600)
    tls = ("--serve-cert", str(cert), "--serve-key", str(key))
    for command in (("monitor",), ("run", "matmul"), ("watch",)):
        rest = ("--", "true") if command == ("watch",) else ()
        for arguments, words in (
            (("--serve", "nonsense:x"), "'nonsense:x' is not an address to serve on."),
            (("--serve", "0.0.0.0:9500"), "0.0.0.0:9500 can be reached from other machines, so serving there needs"),
            (("--serve", "0.0.0.0:0", *tls), "so serving there needs a token."),
            (("--serve", "--serve-token-file", str(open_token)), "Everybody on this machine can read the token file"),
            (("--serve", "--serve-token-file", str(empty_token)), "is empty."),
            (("--serve", "--serve-cert", str(cert), "--serve-key", str(other)), "does not belong to the certificate"),
            (("--serve", "--serve-cert", str(cert)), "TLS needs a certificate and its key."),
            (("--serve-token-file", str(open_token)), "A token, certificate or key is for serving. Give --serve"),
        ):
            assert run([*command, *arguments, *rest]) == 2
            told = capsys.readouterr()
            assert words in told.err
            assert (told.out, told.err.count("\n")) == ("", 1)
    assert not list(tmp_path.rglob("*.gpudash"))
