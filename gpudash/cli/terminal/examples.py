"""Command lines that show what a command is for; each help page ends with its own."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "gpudash",
        "gpudash run training --simulate 8GiB",
        "gpudash watch -- python train.py",
    ),
    "bisect": (
        "gpudash bisect v1.2 HEAD -- python -m pytest tests/test_memory.py",
        "gpudash bisect HEAD~200 HEAD --callable bench.py:build --simulate h100",
        "gpudash bisect v1.2 HEAD --raised-by 5% -- python train.py",
    ),
    "devices": ("gpudash devices", "gpudash devices --known", "gpudash devices --simulate h100 --json"),
    "monitor": (
        "gpudash monitor",
        "gpudash monitor --seconds 60 --json",
        "gpudash monitor ssh://user@host",
    ),
    "watch": (
        "gpudash watch -- python train.py --epochs 3",
        "gpudash watch --simulate 24GiB -- python train.py",
        "gpudash watch --attach 4711",
    ),
    "snapshot": (
        "gpudash snapshot snapshot.pickle",
        "gpudash snapshot snapshot.pickle --capacity h100",
        "gpudash snapshot --pid 4711 -o snapshot.pickle",
    ),
    "compare": (
        "gpudash compare before.gpudash after.gpudash",
        "gpudash compare session.gpudash#1 session.gpudash#2 --json",
        "gpudash compare before.gpudash after.gpudash --tolerance 10%",
    ),
    "runs": (
        "gpudash runs",
        "gpudash runs run.gpudash",
        "gpudash runs --folder results --json",
    ),
    "mcp": ("gpudash mcp", "gpudash mcp --root ~/project", "gpudash mcp --read-only"),
    "export": (
        "gpudash export run.gpudash --to csv -o run.csv",
        "gpudash export run.gpudash --to html -o report.html",
        "gpudash export run.gpudash --to trace -o run.json",
    ),
    "open": (
        "gpudash open run.gpudash",
        "gpudash open ssh://node1 ssh://node2",
        "gpudash open prometheus:http://host:9090",
    ),
    "demo": ("gpudash demo", "gpudash demo --scene 5", "gpudash demo --auto --simulate h100"),
    "lesson": ("gpudash lesson", "gpudash lesson precision", "gpudash lesson --export sheet.ipynb"),
    "doctor": ("gpudash doctor", "gpudash doctor --json", "gpudash doctor --report"),
    "run": (
        "gpudash run training --preset MLP --batch 64",
        "gpudash run pressure --simulate 1GiB --until oom",
        "gpudash run transfer --json --no-record",
    ),
    "estimate": (
        "gpudash estimate training --simulate 8GiB --batch 256",
        "gpudash estimate --simulate 24GiB -- python train.py --epochs 3",
        "gpudash estimate --model ./Llama-3.1-8B --task qlora --simulate 24GiB",
    ),
}
"""Command → its examples; "" is ``gpudash`` alone. Those of ``run`` and ``estimate`` are theirs, not a workload's."""


def shown(command: str) -> str:
    """The end of a help page, in its markup."""
    return "\n".join(["Examples:", "", *(f"* {line}" for line in EXAMPLES[command])])
