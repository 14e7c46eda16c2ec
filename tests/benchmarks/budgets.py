"""The figures that are held, and how far they may go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Budget:
    """A figure and its limit.

    Attributes:
        module: module of this package whose ``measure()`` returns the figure.
        figure: key in what it returns.
        words: what is measured against what.
        limit: the figure must not exceed it, or must not fall below it when `at_least`.
        kind: a missed ratio fails; a missed absolute figure is reported, and fails at twice the limit, since machines
            differ.
        unit: of the figure.
        at_least: whether more is better.
    """

    module: str
    figure: str
    label: str
    limit: float
    kind: Literal["ratio", "absolute"]
    unit: str = ""
    at_least: bool = False

    def verdict(self, value: float) -> Literal["ok", "missed", "FAILED"]:
        """Whether ``value`` keeps the budget."""
        excess = self.limit / value if self.at_least else value / self.limit
        if excess <= 1:
            return "ok"
        return "missed" if self.kind == "absolute" and excess <= 2 else "FAILED"


BUDGETS = (
    Budget("frame", "over_floor", "frame of 12 curves with grid, over bare QPainter", 2.5, "ratio", "×"),
    Budget("frame", "naive_over", "naive pyqtgraph, over that frame", 8.0, "ratio", "×", at_least=True),
    Budget("frame", "million_over_ten_thousand", "frame at 1 000 000 points, over 10 000", 1.3, "ratio", "×"),
    Budget("frame", "areas_over_lines", "frame with areas between curves, over curves alone", 2.0, "ratio", "×"),
    Budget("ghost", "more_ms", "frame of 100 000 predicted requests, over one of readings", 5.0, "absolute", "ms"),
    Budget(
        "ribbons", "more_ms", "frame of 100 000 allocations as ribbons, over one of readings", 5.0, "absolute", "ms"
    ),
    Budget("ribbons", "pan_ms", "panning a million of them, a frame", 33.0, "absolute", "ms"),
    Budget(
        "redrawing", "over_allowed", "changed field to its ghost, over 1.2 dry runs and a frame", 1.0, "absolute", "×"
    ),
    Budget("redrawing", "lost", "changes that came to no ghost", 0.5, "ratio"),
    Budget(
        "overlaid", "over_fifty_thousand", "frame with six runs of 1 000 000 laid over, over 50 000", 1.3, "ratio", "×"
    ),
    Budget("listing", "listing_s", "processor time of listing 10 000 recordings, drawn", 0.3, "absolute", "s"),
    Budget("live_view", "over_naive", "CPU of the live view at 10 Hz, over the naive view's", 1 / 8, "ratio", "×"),
    Budget("lateness", "p99_over_idle", "GUI lateness p99 while training runs, over plots alone", 4.0, "ratio", "×"),
    Budget("lateness", "inside_over_idle", "the same, of a training in the window's process", 4.0, "ratio", "×"),
    Budget("snapshot", "over_nvitop", "GPU + host snapshot, over nvitop's as_snapshot", 0.5, "ratio", "×"),
    Budget("snapshot", "sampler_core_percent", "sampler at the default rate", 1.0, "absolute", "% of a core"),
    Budget("commands", "help_over_nvitop", "processor time of gpudash --help, over nvitop --help", 1.2, "ratio", "×"),
    Budget("commands", "devices_s", "processor time of gpudash devices", 0.5, "absolute", "s"),
    Budget("commands", "doctor_s", "processor time of gpudash doctor", 0.5, "absolute", "s"),
    Budget("commands", "monitor_s", "processor time of gpudash monitor to its first readings", 0.5, "absolute", "s"),
    Budget("commands", "estimate_over_torch", "a default estimate, over import torch", 2.0, "ratio", "×"),
    Budget("first_paint", "with_torch_over_without", "first painted window, over one without torch", 1.1, "ratio", "×"),
    Budget("first_paint", "cpu_s", "processor time of the first painted window", 1.0, "absolute", "s"),
    Budget(
        "opening_tabs",
        "longest_ms",
        "CPU of the window's longest turn while tabs open",
        50.0,
        "absolute",
        "ms",
    ),
    Budget(
        "opening_tabs", "theme_over_bare", "theme switched, over a style sheet on as many labels", 1.5, "ratio", "×"
    ),
    Budget("instrumentation", "cost_percent", "instrumentation of a run, of a bare loop", 5.0, "ratio", "%"),
    Budget("step_clock", "cost_percent", "the agent's clock of a step's parts, of a step of an MLP", 1.0, "ratio", "%"),
    Budget("profiling", "step_over_plain", "profiled step, over a plain one", 3.0, "ratio", "×"),
    Budget("profiling", "reading_s_a_step", "reading a profile of it, a step", 1.0, "absolute", "s"),
    Budget("bare", "transfer_off", "transfer's rate against a bare copy_, either way", 1.25, "ratio", "×"),
    Budget("bare", "matmul_off", "matmul's rate against a bare product, either way", 1.25, "ratio", "×"),
    Budget(
        "forecast",
        "recall_over_best",
        "forecast's recall, over its best peer's",
        1.0,
        "ratio",
        "×",
        at_least=True,
    ),
    Budget("forecast", "false_over_best", "forecast's false alarms, over its best peer's", 1.0, "ratio", "×"),
    Budget("forecast", "coverage", "ranges of due forecasts that held the truth", 0.75, "ratio", at_least=True),
    Budget("forecast", "reading_us", "forecast, a reading", 1000.0, "absolute", "µs"),
    Budget("series_and_recorder", "row_us", "recorder, a row", 25.0, "absolute", "µs"),
    Budget("series_and_recorder", "lost_rows", "committed rows lost by kill -9", 0.5, "ratio", "rows"),
    Budget("reopening", "picture_s", "first picture of a recording of 10 000 000 rows", 3.0, "absolute", "s"),
    Budget("reopening", "over_scan", "its CPU, over that of SQLite's own scan of four columns", 3.0, "ratio", "×"),
    Budget("reopening", "peak_mib", "memory of the whole process meanwhile", 500.0, "ratio", "MiB"),
    Budget("reopening", "pan_ms", "panning it, a frame", 50.0, "absolute", "ms"),
    Budget("reopening", "seek_ms", "going to any moment of it", 50.0, "absolute", "ms"),
    Budget("series_and_recorder", "summarised_us", "recorder with summaries and store, a row", 50.0, "absolute", "µs"),
    Budget(
        "allocator", "events_per_second", "allocator's model, events", 300_000, "absolute", "a second", at_least=True
    ),
    Budget("allocator", "over_dictionary", "it, over a bare dictionary", 40.0, "ratio", "×"),
    Budget("watching", "upper_ratio", "watched script, over it alone, upper end", 1.03, "ratio", "×"),
    Budget("watching", "history_upper_ratio", "it with memory history, upper end", 1.10, "ratio", "×"),
    Budget("watching", "agent_percent", "the agent's own thread", 1.0, "ratio", "% of a core"),
    Budget("serving", "worst_ms", "scrape under the worst of five attacks, median", 20.0, "absolute", "ms"),
    Budget("serving", "gap_s", "longest gap of the recording meanwhile", 0.5, "absolute", "s"),
    Budget("dry_run", "hundred_layers_s", "dry run of a 100-layer transformer", 15.0, "absolute", "s"),
    Budget("dry_run", "hundred_over_fake", "it, over torch's fake tensors alone", 0.5, "ratio", "×"),
    Budget("dry_run", "eighty_billion_s", "answer about 80 billion parameters", 30.0, "absolute", "s"),
    Budget("dry_run", "panel_refresh_s", "fit panel after a changed field", 1.0, "absolute", "s"),
    Budget("dry_run", "panel_whole_s", "fit panel with all alternatives", 4.0, "absolute", "s"),
    Budget("models", "seventy_billion_s", "processor time of an answer about a 70B config", 10.0, "absolute", "s"),
    Budget("models", "thirty_over_one", "answer for an 8B config on thirty cards, over on one", 1.5, "absolute", "×"),
    Budget("snapshot_reading", "seconds", "snapshot of 1 000 000 events, opened", 2.0, "absolute", "s"),
    Budget("snapshot_reading", "over_unpickling", "it, over bare unpickling", 5.0, "ratio", "×"),
    Budget("snapshot_reading", "child_mib", "memory of the process that reads it", 500.0, "ratio", "MiB"),
    Budget("snapshot_reading", "parent_mib", "memory it adds to the window's process", 100.0, "ratio", "MiB"),
    Budget("snapshot_analysis", "history_s", "history of 1 000 000 events, worked out", 1.5, "absolute", "s"),
    Budget("snapshot_analysis", "history_over_sorting", "it, over one sort of their addresses", 40.0, "ratio", "×"),
    Budget("snapshot_analysis", "query_ms", "slowest question about a moment", 100.0, "absolute", "ms"),
    Budget("snapshot_analysis", "what_if_ms", "slowest what-if answer, prepared", 500.0, "absolute", "ms"),
    Budget("snapshot_document", "selection_ms", "slowest selection among as many, drawn", 100.0, "absolute", "ms"),
    Budget("snapshot_document", "zoom_ms", "slowest zoom of their curve", 100.0, "absolute", "ms"),
    Budget("snapshot_document", "filter_ms", "slowest search among them", 100.0, "absolute", "ms"),
    Budget("fleet_overview", "over_bare", "overview of 512 GPUs, over bare QPainter", 2.5, "ratio", "×"),
    Budget("fleet_overview", "core", "it, polled and painted once a second", 0.5, "ratio", "of a core"),
)
