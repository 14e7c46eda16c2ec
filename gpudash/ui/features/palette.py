"""What the command palette finds: commands, recent files, tabs, plots, workloads, presets, devices and runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from gpudash.devices.simulated_cards import is_program_card
from gpudash.specs import workloads
from gpudash.telemetry.runs import ENDINGS, RunView
from gpudash.ui.forms.device_forms import product_text
from gpudash.ui.forms.spec_form import preset_text
from gpudash.ui.widgets.remembered import recent_files
from gpudash.ui.window.menus import Command
from gpudash.ui.window.palette import BETWEEN, CommandPalette, PaletteEntry, command_entries
from gpudash.ui.window.workspace import Workspace

if TYPE_CHECKING:
    from gpudash.session.recordings.library import Library, LibraryEntry, LibraryWatcher

MOST_RUNS = 100
"""Maximum number of recorded runs in the list, the newest ones; more letters find the others."""

MOST_AT_ONCE = 100
"""Maximum number of runs and recordings to process between two frames."""

LONGEST_TAGS = 24
"""Characters of a run's tags that the palette shows and searches."""

BUSY = "A run is in progress; stop it first."


def commands(workspace: Workspace) -> list[Command]:
    """Help > Command Palette."""
    recorded = RecordedRuns(workspace)
    workspace.at_close(recorded.close)
    return [
        Command(
            "Help",
            "Command Palette…",
            "Find a command, tab, plot, workload, device or run by a few letters of its name",
            partial(open_palette, workspace, recorded),
            ("Ctrl+K", "Ctrl+Shift+P"),
            id="help.palette",
        )
    ]


def open_palette(workspace: Workspace, recorded: RecordedRuns) -> CommandPalette:
    """Open the palette over the window."""
    recorded.begin()
    entries = [
        *command_entries(workspace.commands),
        *_recent(workspace),
        *_tabs(workspace),
        *_plots(workspace),
        *(_of_the_form(workspace) if workspace.live else ()),
        *_runs(workspace),
    ]
    palette = CommandPalette(entries, workspace.colours, workspace.window(), further=recorded)
    palette.open()
    palette.field.setFocus()
    return palette


def _recent(workspace: Workspace) -> Iterator[PaletteEntry]:
    place = f"File{BETWEEN}Open Recent"
    for path in recent_files():
        yield PaletteEntry(path.name, place, partial(workspace.open, path), tip=f"Open {path}", why_not=_gone(path))


def _gone(path: Path) -> str:
    if path.exists():
        return ""
    return "The file no longer exists."


def _tabs(workspace: Workspace) -> Iterator[PaletteEntry]:
    """The open documents, and the tabs below the plots."""
    bar = workspace.bar
    for row in range(bar.count()):
        act = partial(bar.setCurrentIndex, row)
        yield PaletteEntry(bar.tabText(row).replace("&&", "&"), "Document", act, tip="Switch to this tab")
    tables = workspace.target_dashboard.tabs.bar
    for row in range(tables.count()):
        text = tables.tabText(row)
        yield PaletteEntry(text, "Table", partial(_show_table, workspace, text), tip=f"Show {text} below the plots")


def _show_table(workspace: Workspace, text: str) -> None:
    dashboard = workspace.show_a_dashboard()
    if dashboard.tabs.collapsed:
        dashboard.toggle_tables()
    bar = dashboard.tabs.bar
    bar.setCurrentIndex(next((row for row in range(bar.count()) if bar.tabText(row) == text), bar.currentIndex()))


def _plots(workspace: Workspace) -> Iterator[PaletteEntry]:
    choice = workspace.target.plots.choice
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
            workspace.dashboard.show_form()
            act()

        return put

    kinds = workloads()
    for row in range(panel.workload.count()):
        name, title = panel.workload.itemData(row), panel.workload.itemText(row)
        if name is None:
            continue
        summary = "Your own program, unchanged"
        if name in kinds:
            summary = kinds[name].summary
        act = in_form(partial(panel.workload.setCurrentIndex, row))
        yield PaletteEntry(title, "Workload", act, tip=summary, why_not=busy, keywords=str(name))
        for preset, values in kinds[name].presets.items() if name in kinds else ():
            act = in_form(partial(panel.take_preset, name, values))
            tip = preset_text(preset, values)
            yield PaletteEntry(f"{title}: {preset}", "Preset", act, tip=tip, why_not=busy, keywords=str(name))
    for device in workspace.session.devices():
        if is_program_card(device.name):
            continue
        text = f"{device.name} · {product_text(device)}"
        act = in_form(partial(panel.take_device, device.name))
        yield PaletteEntry(text, "Device", act, tip="Run on this device", why_not=device.problem or busy)


def _runs(workspace: Workspace) -> Iterator[PaletteEntry]:
    """The runs of the current session, the newest first."""
    dashboard = workspace.target_dashboard
    with dashboard.session.store.lock:
        shown = [run for run in reversed(dashboard.session.store.runs) if not run.of_demo]
        runs = [(run, dashboard.runs.name(run)) for run in shown]
    for run, name in runs:
        if run.running:
            ended = "in progress"
        else:
            ended = ENDINGS.get(run.status, "ended")
        act = partial(_show_run, workspace, run)
        yield PaletteEntry(name, "Run of this session", act, tip=f"Show its time in the plots; it is {ended}")


def _show_run(workspace: Workspace, run: RunView) -> None:
    dashboard = workspace.show_a_dashboard()
    if run.ended_s is None:
        end = dashboard.view.now_s
    else:
        end = run.ended_s
    dashboard.view.show(run.began_s, max(end, run.began_s + 1.0))


class RecordedRuns:
    """The runs of the library, searchable while a thread is still reading it.

    A name takes about 50 µs, and there may be thousands: they are created a few at a time.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._library_watcher: LibraryWatcher | None = None
        self._library: Library | None = None
        self._unnamed: deque[LibraryEntry] = deque()
        self._named: dict[Path, tuple[LibraryEntry, list[tuple[float, str, PaletteEntry]]]] = {}
        self._newest: list[tuple[float, str, PaletteEntry]] = []

    def begin(self) -> None:
        """Read the library until `leave` is called."""
        from gpudash.session.recordings.library import LibraryWatcher

        if self._library_watcher is None:
            self._library_watcher = LibraryWatcher()
        self._library_watcher.watch(True)
        self.take()

    def take(self) -> bool:
        library = None
        if self._library_watcher is not None:
            library = self._library_watcher.library
        changed = False
        if library is not None and library is not self._library:
            self._library = library
            changed = self._forget(library)
        named = 0
        while self._unnamed and named < MOST_AT_ONCE:
            entry = self._unnamed.popleft()
            runs = list(self._entries(entry))
            _before, known = self._named.get(entry.path, (entry, []))
            changed = changed or [run[:2] for run in runs] != [run[:2] for run in known]
            self._named[entry.path] = entry, runs
            named += 1 + len(runs)
        if changed:
            found = [run for _entry, runs in self._named.values() for run in runs]
            self._newest = sorted(found, key=lambda run: run[0], reverse=True)
        return changed

    def _forget(self, library: Library) -> bool:
        """Keep unchanged names and queue the rest; returns whether recordings are gone."""
        there = {entry.path: entry for entry in library.entries}
        count = len(self._named)
        self._named = {path: kept for path, kept in self._named.items() if path in there}
        self._unnamed = deque(
            entry
            for path, entry in there.items()
            if entry.facts is not None and (path not in self._named or self._named[path][0].facts != entry.facts)
        )
        return len(self._named) < count

    def _entries(self, entry: LibraryEntry) -> Iterator[tuple[float, str, PaletteEntry]]:
        """For each run of a recording: its start time, the text to search, and the palette's entry."""
        from gpudash.ui.recordings.library_table import LibraryRow, name_of, runs_of
        from gpudash.units import format_date

        if entry.path == self._workspace.session.recording_path:
            return  # its runs are listed under this session
        for run in runs_of(entry):
            row = LibraryRow(entry, run)
            tags = run.label.tags
            if len(tags) > LONGEST_TAGS:
                tags = f"{tags[: LONGEST_TAGS - 1]}…"
            place = " · ".join(filter(None, (f"Recorded {format_date(row.began_s)}", tags)))
            act = partial(self._workspace.open, entry.path, run=run.number)
            found = PaletteEntry(name_of(row), place, act, tip=f"Open {entry.path} at this run")
            yield row.began_s, f"{found.name} {place}".lower(), found

    def found(self, query: str) -> list[PaletteEntry]:
        terms = query.lower().split()
        holding = (entry for _began_s, text, entry in self._newest if all(word in text for word in terms))
        return list(islice(holding, MOST_RUNS))

    def leave(self) -> None:
        """Stop polling the folder until the palette is opened again."""
        if self._library_watcher is not None:
            self._library_watcher.watch(False)

    def close(self) -> bool:
        """Stop the reader; false if it did not end in time."""
        return self._library_watcher is None or self._library_watcher.close()
