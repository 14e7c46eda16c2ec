// The live figure of a notebook: draws the columns of gpudash/session/api/live_memory.py as SVG, in the notebook's colours.
// Foreign text always becomes a text node, never HTML.

const SVG = "http://www.w3.org/2000/svg";
const SEEN_EVERY_MS = 5000;
const SHORTEST_SPAN_S = 60;
const GAP_S = 5;
const MARGIN = { left: 64, right: 10 };
const GIB = 2 ** 30;
const UNITS = [[2 ** 40, "TiB"], [GIB, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];

const STYLE = `
.gpudash-live { font: 13px/1.45 var(--jp-ui-font-family, var(--vscode-font-family, system-ui, sans-serif));
  color: var(--text); max-width: 60rem; padding: 4px 8px 8px 4px; box-sizing: border-box; position: relative;
  --text: #1b1f24; --soft: #57606a; --line: #d0d7de; --grid: #e8ebef; --allocated: #008490; --reserved: #b9cfe8;
  --mark: #b42318; --ram: #0a7d5c; --ram-area: #cfe8de; --steps: #8a5a00; --steps-area: #f0dfc0; --cell: #57606a14;
  --orange: #b36200; --hover: #57606a1f; }
.gpudash-live.dark { --text: #e6edf3; --soft: #9aa5b1; --line: #4a525c; --grid: #2c333b; --allocated: #2bd4d9; --reserved: #2b4868;
  --mark: #ff8f80; --ram: #2fc292; --ram-area: #173f34; --steps: #eda81c; --steps-area: #4a3a17; --cell: #9aa5b11a;
  --orange: #eda81c; --hover: #9aa5b130; }
.gpudash-live header { display: flex; align-items: center; gap: 8px; margin-bottom: 6px; }
.gpudash-live header strong { font-weight: 600; }
.gpudash-live .state { color: var(--soft); flex: 1; }
.gpudash-live .state::before { content: ""; display: inline-block; width: 7px; height: 7px; border-radius: 50%;
  background: var(--soft); margin-right: 6px; vertical-align: 1px; }
.gpudash-live .state.moving::before { background: var(--ram); }
.gpudash-live button { font: inherit; font-size: 12px; color: var(--text); background: transparent; border: 1px solid var(--line);
  border-radius: 4px; padding: 1px 9px; cursor: pointer; }
.gpudash-live button:hover { background: var(--hover); }
.gpudash-live button:focus-visible { outline: 2px solid var(--allocated); outline-offset: 1px; }
.gpudash-live .head { display: flex; flex-wrap: wrap; gap: 0 14px; align-items: baseline; margin: 8px 0 2px; color: var(--soft); }
.gpudash-live .head .name { color: var(--text); font-weight: 600; }
.gpudash-live .head b { color: var(--text); font-weight: 500; font-variant-numeric: tabular-nums; }
.gpudash-live .key::before { content: ""; display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px;
  background: var(--swatch); vertical-align: -1px; }
.gpudash-live .badge { border: 1px solid var(--orange); color: var(--orange); border-radius: 3px; padding: 0 5px; font-size: 11px;
  line-height: 1.3; }
.gpudash-live svg { display: block; width: 100%; overflow: hidden; }
.gpudash-live svg text { font-size: 11px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.gpudash-live .soft { color: var(--soft); margin: 4px 0; }
.gpudash-live details { margin-top: 10px; }
.gpudash-live summary { cursor: pointer; }
.gpudash-live table { border-collapse: collapse; margin: 6px 0 8px; font-size: 13px; color: var(--text); }
.gpudash-live th, .gpudash-live td { text-align: left; padding: 2px 18px 2px 0; border: 0; border-bottom: 1px solid var(--grid);
  background: none; font-weight: 400; }
.gpudash-live th { color: var(--soft); }
.gpudash-live .number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.gpudash-live code { font-family: var(--jp-code-font-family, ui-monospace, monospace); font-size: 12px; background: none; color: inherit; }
`;

/** A size as gpudash formats it: whole MiB, two decimals up to 10 GiB, then one. */
export function sizeText(bytes) {
  if (!Number.isFinite(bytes)) return "–";
  const [unit, name] = UNITS.find(([unit]) => bytes >= unit && !(unit === GIB && bytes < GIB - 2 ** 19)) ?? [1, "B"];
  const value = bytes / unit;
  if (name === "B" || name === "MiB") return `${Math.round(value)} ${name}`;
  return `${value.toFixed(value < 10 ? 2 : 1)} ${name}`;
}

/** A size on an axis, without trailing zeros. */
function tickText(bytes) {
  return bytes === 0 ? "0" : sizeText(bytes).replace(/\.?0+ /, (zeros) => (zeros.startsWith(".") ? " " : zeros));
}

/** Ticks a power of two apart, from 0 to the first one at or above `top` bytes. */
export function sizeTicks(top) {
  const most = Math.max(top, 2 ** 20);
  const step = 2 ** Math.ceil(Math.log2(most / 3));
  const ticks = [0];
  while (ticks.at(-1) < most) ticks.push(ticks.at(-1) + step);
  return ticks;
}

function rateText(rate) {
  if (rate === 0) return "0";
  return rate < 10 ? rate.toPrecision(2) : String(Math.round(rate));
}

/** The columns of a message: an array of rows, each with seconds, RAM, steps, and two numbers per GPU. */
export function readColumns(view, gpus) {
  const width = 3 + 2 * gpus;
  const bytes = view.buffer ? view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength) : view.slice(0);
  const numbers = new Float32Array(bytes, 0, Math.floor(bytes.byteLength / 4));
  const rows = [];
  for (let at = 0; at + width <= numbers.length; at += width) rows.push(numbers.subarray(at, at + width));
  return rows;
}

/** Steps per second at each row: over the two seconds before it, or over ten if there were few. */
export function stepRates(rows) {
  const rate = (at, seconds) => {
    let first = at;
    while (first > 0 && rows[first][0] > rows[at][0] - seconds) first -= 1;
    const passed = rows[at][0] - rows[first][0];
    return { steps: rows[at][2] - rows[first][2], passed };
  };
  return rows.map((_row, at) => {
    const near = rate(at, 2);
    const { steps, passed } = near.steps >= 6 ? near : rate(at, 10);
    return passed > 0 ? steps / passed : 0;
  });
}

function element(kind, className, text, parent) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function shape(kind, attributes, parent, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

/** A value with its name and the colour in which it is drawn. */
function figure(parent, name, value, swatch) {
  const made = element("span", swatch ? "key" : "", `${name} `, parent);
  if (swatch) made.style.setProperty("--swatch", swatch);
  element("b", "", value, made);
}

function isDark(place) {
  const found = getComputedStyle(place.parentElement ?? document.body).color.match(/[\d.]+/g) ?? [0, 0, 0];
  const [red, green, blue] = found.map(Number);
  return 0.3 * red + 0.59 * green + 0.11 * blue > 140;
}

/** One plot: its frame, its curves, and the mapping of time and sizes to positions. */
class Plot {
  constructor(parent, { width, height, span, top, ticks, written, timed }) {
    this.bottom = height - (timed ? 18 : 4);
    this.width = width;
    this.span = span;
    this.top = top;
    this.svg = shape("svg", { height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" }, parent);
    for (const tick of ticks) {
      const y = this.y(tick);
      shape("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y, stroke: "var(--grid)" }, this.svg);
      shape("text", { x: MARGIN.left - 8, y: Math.min(Math.max(y + 4, 10), height - 2), "text-anchor": "end" }, this.svg, written(tick));
    }
    if (timed) this.times();
  }

  x(seconds) {
    const [first, last] = this.span;
    return MARGIN.left + ((seconds - first) / (last - first)) * (this.width - MARGIN.left - MARGIN.right);
  }

  y(value) {
    return this.bottom - (value / this.top) * (this.bottom - 6);
  }

  times() {
    const [first, last] = this.span;
    const step = [10, 30, 60].find((seconds) => (last - first) / seconds <= 6) ?? 60;
    for (let ago = 0; ago <= last - first + 0.01; ago += step) {
      const at = this.x(last - ago);
      let text = step < 60 ? `−${ago} s` : `−${ago / 60} min`;
      let anchor = at < MARGIN.left + 12 ? "start" : "middle";
      if (ago === 0) {
        text = "now";
        anchor = "end";
      }
      shape("text", { x: at, y: this.bottom + 14, "text-anchor": anchor }, this.svg, text);
    }
  }

  cells(cells, numbered) {
    const [first, last] = this.span;
    for (const [number, began, ended] of cells) {
      const left = this.x(Math.max(began, first));
      const right = this.x(Math.min(ended ?? last, last));
      if (right < left) continue;
      shape("rect", { x: left, y: 0, width: Math.max(right - left, 1), height: this.bottom, fill: "var(--cell)" }, this.svg);
      if (numbered && right - left > 34) shape("text", { x: left + 4, y: 11 }, this.svg, `In[${number}]`);
    }
  }

  /** Draw from row to row, filled or as a line, with gaps for unknown values. */
  curve(rows, value, { fill, stroke }) {
    let line = "";
    let area = "";
    let open = false;
    let before = 0;
    let seconds = 0;
    const end = () => {
      if (open) area += `L${before} ${this.bottom}Z`;
      open = false;
    };
    rows.forEach((row, index) => {
      const found = value(row, index);
      if (!Number.isFinite(found) || row[0] - seconds > GAP_S) end();
      seconds = row[0];
      if (!Number.isFinite(found)) return;
      const at = this.x(row[0]).toFixed(1);
      const y = this.y(Math.min(found, this.top)).toFixed(1);
      area += open ? `L${at} ${y}` : `M${at} ${this.bottom}L${at} ${y}`;
      line += `${open ? "L" : "M"}${at} ${y}`;
      open = true;
      before = at;
    });
    end();
    if (fill) shape("path", { d: area, fill }, this.svg);
    if (stroke) shape("path", { d: line, fill: "none", stroke, "stroke-width": 1.5, "stroke-linejoin": "round" }, this.svg);
  }

  level(value, text) {
    const y = this.y(value);
    shape("line", { x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y, y2: y, stroke: "var(--mark)", "stroke-dasharray": "6 4" }, this.svg);
    shape("text", { x: this.width - MARGIN.right - 4, y: y + 13, "text-anchor": "end", style: "fill: var(--mark)" }, this.svg, text);
  }

  pointer(seconds) {
    const at = this.x(seconds);
    shape("line", { x1: at, x2: at, y1: 0, y2: this.bottom, stroke: "var(--soft)", "stroke-dasharray": "2 3" }, this.svg);
  }
}

/** Draws a model into an element, and again after each change. */
class Figure {
  constructor(model, place) {
    this.model = model;
    this.place = element("div", "gpudash-live", undefined, place);
    element("style", "", STYLE, this.place);
    const header = element("header", "", undefined, this.place);
    element("strong", "", "Memory of this kernel", header);
    this.state = element("span", "state", "", header);
    this.button = element("button", "", "Stop", header);
    this.button.title = "Read no more; %gpudash begins again";
    this.button.onclick = () => this.say("stop");
    this.plots = element("div", "plots", undefined, this.place);
    this.held = element("div", "", undefined, this.place);
    this.isOpen = true;
    this.pointed = null;
    this.plots.onpointermove = (event) => this.point(event);
    this.plots.onpointerleave = () => {
      this.pointed = null;
      this.draw();
    };
  }

  say(what) {
    this.model.send({ what });
  }

  /** Report that the figure is visible. Not while a cell runs: the kernel would read the messages only afterwards. */
  seen() {
    const facts = this.model.get("facts");
    const isSeen = this.place.isConnected && document.visibilityState === "visible" && this.place.offsetParent !== null;
    if (isSeen && !facts.running && !facts.stopped) this.say("seen");
  }

  point(event) {
    const box = this.plots.getBoundingClientRect();
    const share = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    this.pointed = share >= 0 && share <= 1 ? share : null;
    this.draw();
  }

  draw() {
    const facts = this.model.get("facts");
    if (!facts.gpus) return;
    this.place.classList.toggle("dark", isDark(this.place));
    const rows = readColumns(this.model.get("columns"), facts.gpus.length);
    const last = facts.now;
    const kept = rows.length ? last - rows[0][0] : 0;
    const span = [last - Math.min(Math.max(kept, SHORTEST_SPAN_S), facts.span), last];
    const chosen = this.chosen(rows, span);
    this.tell(facts, chosen, last);
    this.plots.replaceChildren();
    const drawn = { facts, rows, span, chosen, width: Math.max(this.plots.clientWidth, 260) };
    facts.gpus.forEach((gpu, index) => this.gpu(drawn, gpu, 3 + 2 * index));
    if (!facts.gpus.length) element("p", "soft", facts.no_gpu, this.plots);
    this.steps(drawn);
    this.ram(drawn);
  }

  /** The row under the pointer, or else the newest. */
  chosen(rows, span) {
    if (this.pointed === null) return rows.at(-1);
    const seconds = span[0] + this.pointed * (span[1] - span[0]);
    return rows.findLast((row) => row[0] <= seconds) ?? rows[0];
  }

  tell(facts, chosen, last) {
    const isPointed = this.pointed !== null && chosen;
    this.state.classList.toggle("moving", !facts.stopped);
    let text = facts.stopped || (facts.running ? "live, a cell is running" : "live");
    if (isPointed) text = `${Math.max(0, Math.round(last - chosen[0]))} s ago`;
    this.state.textContent = text;
    this.button.hidden = Boolean(facts.stopped);
  }

  panel(drawn, { height, top, ticks, written = tickText, timed = false, numbered = false }) {
    const { width, span, facts, chosen } = drawn;
    const plot = new Plot(this.plots, { width, height, span, top, ticks, written, timed });
    plot.cells(facts.cells, numbered);
    plot.pointAfter = () => {
      if (this.pointed !== null && chosen) plot.pointer(chosen[0]);
    };
    return plot;
  }

  gpu(drawn, gpu, column) {
    const { rows, chosen } = drawn;
    const head = element("div", "head", undefined, this.plots);
    if (gpu.simulated) element("span", "badge", "SIMULATED", head);
    const name = gpu.product === "Simulated GPU" ? `GPU ${gpu.device.split(":")[1]}` : gpu.product;
    element("span", "name", name, head);
    figure(head, "tensors", sizeText(chosen?.[column]), "var(--allocated)");
    figure(head, "reserved", sizeText(chosen?.[column + 1]), "var(--reserved)");
    figure(head, "peak", sizeText(gpu.peak));
    figure(head, "of", sizeText(gpu.capacity));
    let most = 0;
    for (const row of rows) most = Math.max(most, row[column] || 0, row[column + 1] || 0);
    const isNear = most > 0.5 * gpu.capacity;
    const all = sizeTicks((isNear ? gpu.capacity : most) * 1.02);
    const top = isNear ? gpu.capacity * 1.06 : all.at(-1);
    const ticks = all.filter((tick) => tick <= top);
    const plot = this.panel(drawn, { height: 150, top, ticks, numbered: true });
    plot.curve(rows, (row) => row[column + 1], { fill: "var(--reserved)" });
    plot.curve(rows, (row) => row[column], { fill: "var(--allocated)" });
    if (isNear) plot.level(gpu.capacity, `${sizeText(gpu.capacity)}: all of the card`);
    plot.pointAfter();
  }

  steps(drawn) {
    const { rows, chosen } = drawn;
    if (!rows.length || rows.at(-1)[2] === 0) return;
    const rates = stepRates(rows);
    const head = element("div", "head", undefined, this.plots);
    element("span", "name", "Steps", head);
    const rate = rates[rows.indexOf(chosen)];
    figure(head, "so far", String(chosen[2]));
    figure(head, "per second", rateText(rate), "var(--steps)");
    const most = Math.max(...rates);
    const plot = this.panel(drawn, { height: 50, top: most * 1.1, ticks: [0, most], written: rateText });
    plot.curve(rows, (_row, index) => rates[index], { fill: "var(--steps-area)", stroke: "var(--steps)" });
    plot.pointAfter();
  }

  ram(drawn) {
    const { rows, chosen, facts } = drawn;
    const head = element("div", "head", undefined, this.plots);
    element("span", "name", "RAM of the kernel", head);
    figure(head, "resident", sizeText(chosen?.[1]), "var(--ram)");
    figure(head, "of", sizeText(facts.ram));
    let most = 0;
    for (const row of rows) most = Math.max(most, row[1]);
    const ticks = sizeTicks(most * 1.02).filter((_tick, index, all) => index === 0 || index === all.length - 1);
    const plot = this.panel(drawn, { height: 78, top: ticks.at(-1), ticks, timed: true, numbered: !facts.gpus.length });
    plot.curve(rows, (row) => row[1], { fill: "var(--ram-area)", stroke: "var(--ram)" });
    plot.pointAfter();
  }

  /** The table of what the names hold. */
  hold() {
    const table = this.model.get("table");
    this.held.replaceChildren();
    if (!table.rows) return;
    const details = element("details", "", undefined, this.held);
    details.open = this.isOpen;
    details.ontoggle = () => {
      this.isOpen = details.open;
    };
    const summary = element("summary", "", `${table.headline} `, details);
    if (table.after) element("span", "soft", `After In[${table.after}]`, summary);
    const grid = element("table", "", undefined, details);
    const titles = element("tr", "", undefined, grid);
    const isFreed = table.rows.some((cells) => cells[3]);
    const columns = ["name", "holds", "what", "freed by"].slice(0, isFreed ? 4 : 3);
    columns.forEach((title, at) => element("th", at === 1 ? "number" : "", title, titles));
    for (const cells of table.rows) {
      const row = element("tr", "", undefined, grid);
      cells.slice(0, columns.length).forEach((text, at) => {
        const cell = element("td", at === 1 ? "number" : "", undefined, row);
        element(at === 0 || at === 3 ? "code" : "span", "", text, cell);
      });
    }
    const below = element("div", "", undefined, details);
    const refresh = element("button", "", "Refresh", below);
    refresh.onclick = () => this.say("refresh");
    refresh.hidden = Boolean(this.model.get("facts").stopped);
  }
}

function render({ model, el }) {
  const figure = new Figure(model, el);
  const draw = () => figure.draw();
  const hold = () => figure.hold();
  const seen = () => figure.seen();
  model.on("change:facts", draw);
  model.on("change:table", hold);
  const timer = setInterval(seen, SEEN_EVERY_MS);
  document.addEventListener("visibilitychange", seen);
  const sizes = new ResizeObserver(draw);
  sizes.observe(el);
  hold();
  draw();
  seen();
  return () => {
    model.off("change:facts", draw);
    model.off("change:table", hold);
    clearInterval(timer);
    document.removeEventListener("visibilitychange", seen);
    sizes.disconnect();
  };
}

export default { render };
