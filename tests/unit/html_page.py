"""A page as a browser would find it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "line", "path", "rect", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Its elements and its words; every element has to be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.label: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open[-1:] != ["style"]:
            self.label.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.label)

    def count(self, tag: str) -> int:
        return sum(1 for name, _ in self.elements if name == tag)
