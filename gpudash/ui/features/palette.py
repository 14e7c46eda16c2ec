"""What the command palette finds: every command, file opened last, tab, plot, workload, preset, device and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from gpudash.specs import workloads
from gpudash.telemetry.runs import RunView
from gpudash.ui.forms.device_forms import product_words
from gpudash.ui.forms.run_progress import ENDINGS
from gpudash.ui.forms.spec_form import preset_words
from gpudash.ui.widgets.remembered import recent_files
from gpudash.ui.window.menus import Command
from gpudash.ui.window.palette import BETWEEN, CommandPalette, PaletteEntry, command_entries
from gpudash.ui.window.workspace import Workspace

MOST_RUNS = 200
"""Recorded runs that can be found, the newest; the library has them all."""

BUSY = "A run is in progress; stop it first."


def commands(workspace: Workspace) -> list[Command]:
    """Help > Command Palette."""
    return [
        Command(
            "Help",
            "Command Palette…",
            "Find a command, tab, plot, workload, device or run by a few letters of its name",
            partial(open_palette, workspace),
            ("Ctrl+K", "Ctrl+Shift+P"),
            id="help.palette",
        )
    ]


def open_palette(workspace: Workspace) -> CommandPalette:
    """Show the palette over the window."""
    entries = [
        *command_entries(workspace.commands),
        *_recent(workspace),
        *_tabs(workspace),
        *_plots(workspace),
        *(_of_the_form(workspace) if workspace.live else ()),
        *_runs(workspace),
        *_recorded_runs(workspace),
    ]
    palette = CommandPalette(entries, workspace.colours, workspace.window())
    palette.open()
    palette.field.setFocus()
    return palette


def _recent(workspace: Workspace) -> Iterator[PaletteEntry]:
    place = f"File{BETWEEN}Open Recent"
    for path in recent_files():
        yield PaletteEntry(path.name, place, partial(workspace.open, path), tip=f"Open {path}", why_not=_gone(path))


def _gone(path: Path) -> str:
    return "" if path.exists() else "The file is not there any more."


def _tabs(workspace: Workspace) -> Iterator[PaletteEntry]:
    """The open documents, and what lies below the plots."""
    bar = workspace.bar
    for row in range(bar.count()):
        act = partial(bar.setCurrentIndex, row)
        yield PaletteEntry(bar.tabText(row).replace("&&", "&"), "Document", act, tip="Bring it to the front")
    tables = workspace.meant_dashboard.tabs.bar
    for row in range(tables.count()):
        words = tables.tabText(row)
        yield PaletteEntry(words, "Table", partial(_show_table, workspace, words), tip=f"Show {words} below the plots")


def _show_table(workspace: Workspace, words: str) -> None:
    dashboard = workspace.show_a_dashboard()
    if dashboard.tabs.collapsed:
        dashboard.toggle_tables()
    bar = dashboard.tabs.bar
    bar.setCurrentIndex(next((row for row in range(bar.count()) if bar.tabText(row) == words), bar.currentIndex()))


def _plots(workspace: Workspace) -> Iterator[PaletteEntry]:
    choice = workspace.meant.plots.choice
    shown = choice.of(choice.offered)
    for spec in choice.offered:
        there = spec in shown
        yield PaletteEntry(
            f"{spec.title.partition(' · ')[0].removesuffix(' (solid)')}{'  ✓' if there else ''}",
            f"View{BETWEEN}Plots",
            partial(choice.choose, spec.id, not there),
            tip="Hide this plot" if there else "Show this plot",
            why_not="It is the only one." if shown == [spec] else workspace.why_no_plots(),
        )


def _of_the_form(workspace: Workspace) -> Iterator[PaletteEntry]:
    """The workloads with their presets, and the devices."""
    panel, busy = workspace.dashboard.panel, BUSY if workspace.session.running else ""

    def in_form(act: Callable[[], object]) -> Callable[[], None]:
        def put() -> None:
            workspace.show_dashboard()
            workspace.show_panels(True)
            act()

        return put

    kinds = workloads()
    for row in range(panel.workload.count()):
        name, title = panel.workload.itemData(row), panel.workload.itemText(row)
        if name is None:
            continue
        summary = kinds[name].summary if name in kinds else "Your own program, unchanged"
        act = in_form(partial(panel.workload.setCurrentIndex, row))
        yield PaletteEntry(title, "Workload", act, tip=summary, why_not=busy)
        for preset, values in kinds[name].presets.items() if name in kinds else ():
            act = in_form(partial(panel.take_preset, name, values))
            tip = preset_words(preset, values)
            yield PaletteEntry(f"{title}: {preset}", "Preset", act, tip=tip, why_not=busy)
    for device in workspace.session.devices():
        words = f"{device.name} · {product_words(device)}"
        act = in_form(partial(panel.take_device, device.name))
        yield PaletteEntry(words, "Device", act, tip="Run on this device", why_not=device.problem or busy)


def _runs(workspace: Workspace) -> Iterator[PaletteEntry]:
    """The runs of the session in front, the newest first."""
    from gpudash.session.recordings.run_names import given_name

    session = workspace.meant_dashboard.session
    with session.store.lock:
        runs = list(reversed(session.store.runs))
    for run in runs:
        name = given_name(run.workload, run.device, run.spec)
        ended = "in progress" if run.running else ENDINGS.get(run.status, "Ended").lower()
        act = partial(_show_run, workspace, run)
        yield PaletteEntry(name, "Run of this session", act, tip=f"Show its time in the plots; it is {ended}")


def _show_run(workspace: Workspace, run: RunView) -> None:
    dashboard = workspace.show_a_dashboard()
    end = dashboard.view.now_s if run.ended_s is None else run.ended_s
    dashboard.view.show(run.began_s, max(end, run.began_s + 1.0))


def _recorded_runs(workspace: Workspace) -> list[PaletteEntry]:
    """The runs of the recordings that the library has read, the newest first."""
    from gpudash.session.recordings.library import load_cache
    from gpudash.session.recordings.run_names import run_name
    from gpudash.ui.recordings.library_table import moment_words

    found = [
        (kept.stamp.changed_ns, run.number, path, run_name(run))
        for path, kept in load_cache().items()
        for run in kept.facts.runs
        if path.is_file()
    ]
    return [
        PaletteEntry(
            name,
            f"Recorded {moment_words(changed_ns / 1e9)}",
            partial(workspace.open, path),
            tip=f"Open {path}",
        )
        for changed_ns, _number, path, name in sorted(found, reverse=True)[:MOST_RUNS]
    ]
