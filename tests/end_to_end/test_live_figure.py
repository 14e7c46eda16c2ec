"""The live figure of a notebook, drawn by a browser from what the kernel sends."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import numpy as np

from gpudash.units import GIB, MIB
from tests.programs import program

SOURCE = Path(__file__).parents[2] / "gpudash/session/api/live_figure.js"

HOSTILE = "<img src=x onerror=\"document.title='executed'\">"

FACTS = {
    "gpus": [{"device": "sim:0", "simulated": True, "product": HOSTILE, "capacity": 2 * GIB, "peak": 1536 * MIB}],
    "ram": 16 * GIB,
    "cells": [[3, 0.5, 40.0]],
    "now": 60.0,
    "span": 300.0,
    "running": False,
    "stopped": "",
    "no_gpu": "",
}

TABLE = {"headline": "Tensors hold 1.00 GiB.", "rows": [[HOSTILE, "1.00 GiB", "list", "%reset -f out"]], "after": 3}

PAGE = """<!doctype html><meta charset="utf-8">
<body style="color: rgb(230, 230, 230)"><div id="place"></div><script type="module">
%s
const state = %s;
const bytes = Uint8Array.from(atob(%s), (letter) => letter.charCodeAt(0));
state.columns = new DataView(bytes.buffer);
const model = { get: (name) => state[name], on() {}, off() {}, send(message) { document.title = message.what; } };
render({ model, el: document.getElementById("place") });
</script>"""


def test_a_browser_draws_it_and_runs_nothing_of_what_names_say(tmp_path: Path) -> None:
    browser = program("chromium", "chromium-browser", "google-chrome")
    rows = np.zeros((120, 5), "<f4")
    rows[:, 0] = np.arange(120) / 2
    rows[:, 1] = 512 * MIB
    rows[:, 2] = np.arange(120)
    rows[:, 3] = np.linspace(0, 1.5 * GIB, 120)
    rows[:, 4] = np.nan
    columns = json.dumps(base64.b64encode(rows.tobytes()).decode())
    state = json.dumps({"facts": FACTS, "table": TABLE}).replace("<", "\\u003c")
    page = tmp_path / "figure.html"
    page.write_text(PAGE % (SOURCE.read_text(encoding="utf-8"), state, columns), encoding="utf-8")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--proxy-server=127.0.0.1:9", profile, "--dump-dom")
    command = [browser, *flags, page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    drawn = dom.partition('<div id="place">')[2].partition("<script")[0]
    assert 'class="gpudash-live dark"' in drawn
    assert "SIMULATED" in drawn and "tensors <b>1.50 GiB</b>" in drawn and "reserved <b>–</b>" in drawn
    assert ">In[3]</text>" in drawn and "all of the card" in drawn and "per second <b>2.0</b>" in drawn
    assert "After In[3]" in drawn and "%reset -f out" in drawn
    assert "&lt;img src=x" in drawn and "<img" not in drawn
    assert "<title>executed" not in dom
    assert "NaN" not in drawn and "undefined" not in drawn
