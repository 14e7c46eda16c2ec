"""A page of HTML that needs nothing but itself: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from gpudash.system.foreign_text import visible

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #57606a; --back: #ffffff; --line: #d0d7de; --bar: #2f6fb7;
  --allocated: #2f6fb7; --reserved: #b9cfe8; --mark: #b42318; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9aa5b1; --back: #14181d; --line: #343b44;
  --bar: #6cabec; --allocated: #6cabec; --reserved: #2b4868; --mark: #ff8f80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 2rem; border-top: 1px solid var(--line);
  padding-top: 1rem; } h3 { font-size: 1rem; margin-bottom: .4rem; }
a { color: var(--bar); }
.cause { font-size: 1.15rem; font-weight: 600; } .soft { color: var(--soft); }
table { border-collapse: collapse; width: 100%; } th { text-align: left; color: var(--soft); font-weight: 500; }
td, th { padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.bar { width: 45%; } .fill { display: block; height: .9rem; background: var(--bar); min-width: 1px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; } details { margin: .3rem 0; } .library { color: var(--soft); }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--soft); } svg text.mark { fill: var(--mark); }
.grid { stroke: var(--line); } .reserved { fill: var(--reserved); } .allocated { fill: var(--allocated); }
.capacity { stroke: var(--mark); stroke-dasharray: 6 4; } .mark { stroke: var(--mark); } text.mark { stroke: none; }
.forward { fill: #3a9d5d; opacity: .1; } .backward { fill: #c77d1e; opacity: .12; }
.optimizer { fill: #8a56c2; opacity: .12; }
"""
"""Of every page: words, tables, folded stacks, and the drawings within it, in light and in dark."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser lets the page do (https://www.w3.org/TR/CSP3/): its own style, and nothing else. Should a text of
somebody else's ever become an element, no script of it is run and nothing is loaded."""


def document(title: str, body: Iterable[str], style: str = "") -> str:
    """The whole page, in which control characters are written out (`visible`).

    Args:
        title: of the browser's tab, as plain text.
        body: parts of HTML, in order.
        style: rules beyond `STYLE`.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(visible(title))}</title>'
        f"<style>{STYLE}{style}</style></head><body>{''.join(map(visible, body))}</body></html>\n"
    )


def table(head: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> str:
    """A table; of each column its title and whether it holds numbers. The cells are HTML already."""
    numbers = ['class="number"' if number else "" for _, number in head]
    titles = "".join(f"<th {kind}>{escape(title)}</th>" for (title, _), kind in zip(head, numbers, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td {kind}>{cell}</td>' for cell, kind in zip(row, numbers, strict=True))}</tr>"
        for row in rows
    )
    return f"<table><tr>{titles}</tr>{body}</table>"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and what is known of each, as plain text; "" without any."""
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in rows)
    return f'<table class="facts">{cells}</table>' if cells else ""
