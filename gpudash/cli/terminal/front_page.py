"""The page of ``gpudash --help``, and the list of commands.

It is printed without the parser, whose import takes longer than the rest of the page. A test compares its text with
the page that the parser would print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpudash.cli.terminal.output import help_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel

ABOUT = "About gpudash"

_NARROWEST = 8
"""Columns of text that a summary has in the narrowest terminal."""


class ListedCommand(NamedTuple):
    """A command as listed on the page.

    Attributes:
        function: "module:function", imported when the command is used; "" for a command with sub-commands.
        summary: first sentence of its help page.
        panel: title of its panel.
        examples: typical command lines, which end its help page; for ``run`` and ``estimate``, they are those of the
            command, not of a workload.
    """

    function: str
    summary: str
    panel: str = "Commands"
    examples: tuple[str, ...] = ()

    @property
    def epilogue(self) -> str:
        """The end of its help page, in markup."""
        return "\n".join(["Examples:", "", *(f"* {line}" for line in self.examples)])


WHOLE = ListedCommand(
    "gpudash.cli.start:start",
    "Runs PyTorch tensor workloads and shows what they do to memory, bandwidth and loss.",
    examples=("gpudash", "gpudash run training --simulate 8GiB", "gpudash watch -- python train.py"),
)
"""``gpudash`` without a command."""

COMMANDS = {
    "bisect": ListedCommand(
        "gpudash.cli.bisect:bisect",
        "Find the commit that raised the peak of GPU memory, and the line that did: gpudash bisect [OPTIONS] GOOD BAD "
        "-- python train.py",
        examples=(
            "gpudash bisect v1.2 HEAD -- python -m pytest tests/test_memory.py",
            "gpudash bisect HEAD~200 HEAD --callable bench.py:build --simulate h100",
            "gpudash bisect v1.2 HEAD --raised-by 5% -- python train.py",
        ),
    ),
    "compare": ListedCommand(
        "gpudash.cli.recordings.compare:compare",
        "Compare two recorded runs: every figure as B minus A, with the noise of both, and their parameters.",
        examples=(
            "gpudash compare before.gpudash after.gpudash",
            "gpudash compare session.gpudash#1 session.gpudash#2 --json",
            "gpudash compare before.gpudash after.gpudash --tolerance 10%",
        ),
    ),
    "demo": ListedCommand(
        "gpudash.cli.demo:demo",
        "Show what tensors do to memory, scene by scene, in full screen.",
        examples=("gpudash demo", "gpudash demo --scene 5", "gpudash demo --auto --simulate h100"),
    ),
    "devices": ListedCommand(
        "gpudash.cli.devices:devices",
        "List every device, what each reports, and why something is missing.",
        examples=("gpudash devices", "gpudash devices --known", "gpudash devices --simulate h100 --json"),
    ),
    "doctor": ListedCommand(
        "gpudash.cli.doctor:doctor",
        "Check driver, NVML, torch, Qt and permissions; report what does not work and how to fix it.",
        examples=("gpudash doctor", "gpudash doctor --json", "gpudash doctor --report"),
    ),
    "estimate": ListedCommand(
        "",
        "Predict the memory a run would take: of a workload, a model, your own function, or any program, "
        "unchanged: gpudash estimate [OPTIONS] -- python train.py",
        examples=(
            "gpudash estimate training --simulate 8GiB --batch 256",
            "gpudash estimate --simulate 24GiB -- python train.py --epochs 3",
            "gpudash estimate --model ./Llama-3.1-8B --task qlora --simulate 24GiB",
        ),
    ),
    "export": ListedCommand(
        "gpudash.cli.recordings.export:export",
        "Write a recording in another format: data (csv, parquet, json), a trace of stages and steps for "
        "ui.perfetto.dev (trace, also called perfetto), the plots as a picture (png, svg), a report in one page that "
        "opens offline (html), or a folder for a tracker of experiments (tensorboard, wandb, mlflow).",
        examples=(
            "gpudash export run.gpudash --to csv -o run.csv",
            "gpudash export run.gpudash --to html -o report.html",
            "gpudash export run.gpudash --to trace -o run.json",
        ),
    ),
    "lesson": ListedCommand(
        "gpudash.cli.lesson:lesson",
        "Learn what takes GPU memory: guess first, then see it, in full screen.",
        examples=("gpudash lesson", "gpudash lesson precision", "gpudash lesson --export sheet.ipynb"),
    ),
    "mcp": ListedCommand(
        "gpudash.cli.mcp:mcp",
        "Serve a coding agent over standard input and output, by the Model Context Protocol.",
        examples=("gpudash mcp", "gpudash mcp --root ~/project", "gpudash mcp --read-only"),
    ),
    "monitor": ListedCommand(
        "gpudash.cli.monitor:monitor",
        "Watch the machine without running anything.",
        examples=("gpudash monitor", "gpudash monitor --seconds 60 --json", "gpudash monitor ssh://user@host"),
    ),
    "open": ListedCommand(
        "gpudash.cli.recordings.open:open_address",
        "Open a script, a model, a memory snapshot, the folder of an out-of-memory report, a trace of torch.profiler, "
        "or a recording in the window.",
        examples=(
            "gpudash open train.py --simulate rtx4060",
            "gpudash open run.gpudash",
            "gpudash open ssh://node1 ssh://node2",
        ),
    ),
    "run": ListedCommand(
        "",
        "Run a workload in the terminal.",
        examples=(
            "gpudash run training --preset MLP --batch 64",
            "gpudash run pressure --simulate 1GiB --until oom",
            "gpudash run transfer --json --no-record",
        ),
    ),
    "runs": ListedCommand(
        "gpudash.cli.recordings.runs:runs",
        "List the recorded runs, the newest recording first; or show the result of one, and why its memory ran out.",
        examples=("gpudash runs", "gpudash runs run.gpudash", "gpudash runs --folder results --json"),
    ),
    "snapshot": ListedCommand(
        "gpudash.cli.recordings.snapshot:snapshot",
        "Show what filled the memory in a torch memory snapshot, who allocated it, and what would have fitted.",
        examples=(
            "gpudash snapshot snapshot.pickle",
            "gpudash snapshot snapshot.pickle --capacity h100",
            "gpudash snapshot --pid 4711 -o snapshot.pickle",
        ),
    ),
    "watch": ListedCommand(
        "gpudash.cli.watch:watch",
        "Run your own program and watch it: gpudash watch [OPTIONS] -- COMMAND ...",
        examples=(
            "gpudash watch -- python train.py --epochs 3",
            "gpudash watch --simulate 24GiB -- python train.py",
            "gpudash watch --attach 4711",
        ),
    ),
    "completion": ListedCommand(
        "gpudash.cli:print_completion",
        "Print a script that completes commands and flags in a shell: source <(gpudash completion bash)",
        ABOUT,
    ),
    "help": ListedCommand("gpudash.cli:print_help", "Show how a command is used: gpudash help run training.", ABOUT),
    "version": ListedCommand("gpudash.cli:print_version", "Print the version.", ABOUT),
}

FLAGS = {
    "Commands": {
        "--help (-h)": "Display this message and exit.",
        "--version": "Display application version.",
        "--verbose": "Log to standard error what gpudash does, with tracebacks of errors; works with every command.",
    },
    "Simulated GPUs": {
        "--simulate SIZE|GPU": "Simulate a GPU with this much memory (8GiB), or one by its name (h100; gpudash devices "
        "--known lists them). Repeat it for sim:1 and so on. Default: one of 8 GiB if there is no GPU.",
        "--simulate-others SIZE": "Memory of sim:0 that simulated other processes hold (2GiB). [default: 0]",
    },
}
"""Panel title → flag → description."""


def print_front_page() -> None:
    """Print the page."""
    console = help_console()
    console.print("Usage: gpudash COMMAND [OPTIONS]", style="bold")
    console.print()
    console.print(WHOLE.summary)
    console.print()
    for title in ("Commands", ABOUT, "Simulated GPUs"):
        commands = {name: command.summary for name, command in COMMANDS.items() if command.panel == title}
        console.print(_panel(title, {**commands, **FLAGS.get(title, {})}, console))
    console.print()
    console.print("Examples:")
    console.print()
    for line in WHOLE.examples:
        console.print(f" • {line}", soft_wrap=True)


def _panel(title: str, rows: dict[str, str], console: Console) -> Panel:
    """A frame round names, and beside each what it means. Not a rich.table, whose import takes a tenth of the page's
    time; and titles are texts, since markup would import every emoji."""
    from rich.box import ROUNDED
    from rich.panel import Panel
    from rich.text import Text

    indent = max(map(len, rows)) + 2
    width = max(console.width - indent - 4, _NARROWEST)  # the frame's two lines and the spaces within
    text = Text()
    for name, summary in rows.items():
        beginning = Text(name.ljust(indent), style="cyan")
        for line in Text(summary).wrap(console, width, overflow="fold"):
            line.rstrip()
            text.append(beginning).append(line).append("\n")
            beginning = Text(" " * indent)
    text.right_crop(1)
    return Panel(text, box=ROUNDED, title=Text(title), title_align="left")
