"""The settings file: a wrong value costs only itself, and writing one keeps the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudash.system.folders import data_folder
from gpudash.system.settings import Settings, load_settings, recordings_folder, save_settings, settings_file
from gpudash.units import GIB


def test_everything_lies_under_the_folder_the_user_names(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folder() == home
    assert settings_file() == home / "settings.toml"
    assert recordings_folder() == home / "recordings"
    monkeypatch.setenv("GPUDASH_HOME", "~/elsewhere")
    assert data_folder() == Path.home() / "elsewhere"


def test_without_a_name_it_is_the_platforms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUDASH_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert data_folder() == Path("/somewhere/gpudash")


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = Settings()
    assert (settings.warn_ratio, settings.critical_ratio, settings.hysteresis_ratio) == (0.85, 0.95, 0.05)
    assert (settings.rate_hz, settings.guard, settings.record) == (20.0, True, True)
    assert (settings.recordings_bytes, settings.recordings_count) == (2 * GIB, 100)


def test_a_missing_file_gives_the_defaults_in_silence() -> None:
    assert load_settings() == (Settings(), [])


def written(text: str) -> Path:
    settings_file().parent.mkdir(parents=True, exist_ok=True)
    settings_file().write_text(text, encoding="utf-8")
    return settings_file()


def test_what_is_set_is_used() -> None:
    written('rate_hz = 10\ntheme = "dark"\nfuture = 1\n')
    settings, problems = load_settings()
    assert (settings.rate_hz, settings.theme) == (10.0, "dark")
    assert problems == []


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("rate_hz = 51", "rate_hz", 20.0),
        ('rate_hz = "fast"', "rate_hz", 20.0),
        ("guard = 7", "guard", True),
        ('theme = "pink"', "theme", "system"),
        ("recordings_count = 1.5", "recordings_count", 100),
        ("warn_ratio = [1]", "warn_ratio", 0.85),
    ],
)
def test_a_wrong_value_costs_only_itself(line: str, name: str, value: object) -> None:
    path = written(f"window_s = 300\n{line}\n")
    settings, problems = load_settings()
    assert getattr(settings, name) == value
    assert settings.window_s == 300
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}: {name}: ")
    assert "\n" not in problems[0]
    assert path.read_text() == f"window_s = 300\n{line}\n"


def test_several_wrong_values_are_told_one_by_one() -> None:
    written('rate_hz = 0\ntheme = "pink"\nsmoothing = 2\nwindow_s = 300\n')
    settings, problems = load_settings()
    assert settings == Settings(window_s=300)
    assert len(problems) == 3


@pytest.mark.parametrize("lines", ["warn_ratio = 0.9\ncritical_ratio = 0.8\n", "warn_ratio = 0.99\n"])
def test_levels_that_do_not_ascend_both_fall_back(lines: str) -> None:
    written(lines)
    settings, problems = load_settings()
    assert settings == Settings()
    assert len(problems) == 1
    assert "must lie below" in problems[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((content, "") for content in (b"rate_hz = = 1", b"\xff\xfe", b"rate_hz")),
        (b"a = " + b"[" * 15_000, "is nested too deep"),
        (b"a = " + b"[" * 100_000, "is far too large"),
        (b".".join([b"a"] * 100_000) + b" = 1", "is far too large"),
        (b"a = " + b"9" * 5000, "cannot be read"),
    ],
)
def test_a_file_that_is_no_toml_or_hostile_gives_the_defaults_and_a_sentence(content: bytes, said: str) -> None:
    path = written("")
    path.write_bytes(content)
    settings, problems = load_settings()
    assert settings == Settings()
    assert len(problems) == 1
    assert str(path) in problems[0] and said in problems[0]


def test_a_long_wrong_value_is_told_by_its_beginning() -> None:
    _settings, problems = load_settings(written(f'rate_hz = "{"9" * 5000}"'))
    assert len(problems[0]) < 300


def test_saving_over_a_file_nested_too_deep_is_refused() -> None:
    path = written(f"a = {'[' * 15_000}")
    with pytest.raises(ValueError, match="fix or remove it"):
        save_settings({"rate_hz": 5.0}, path)


def test_saving_one_setting_keeps_the_rest_comments_included() -> None:
    path = written('# mine\nrate_hz = 10 # slow\ntheme = "dark"\n')
    save_settings({"theme": "light"})
    save_settings({"smoothing": 0.0})
    assert path.read_text() == '# mine\nrate_hz = 10 # slow\ntheme = "light"\nsmoothing = 0.0\n'
    assert [entry.name for entry in path.parent.iterdir()] == ["settings.toml"]


def test_saving_makes_the_file() -> None:
    save_settings({"rate_hz": 5.0})
    assert load_settings()[0].rate_hz == 5.0


def test_saving_leaves_a_broken_file_alone() -> None:
    path = written("rate_hz = = 1")
    with pytest.raises(ValueError, match="is not valid TOML"):
        save_settings({"rate_hz": 5.0})
    assert path.read_text() == "rate_hz = = 1"
