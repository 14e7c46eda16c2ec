"""The rendered page: both formats, both codings, rendered seldom, and read back by prometheus-client's own parsers."""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Mapping

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from gpudash.session.serving.catalogue import CATALOGUE, ServedMetric
from gpudash.session.serving.figures import KEPT_S, LONGEST_LABEL, OPENMETRICS, TEXT, Exposition, Rows
from tests.programs import program

EVERYTHING: Mapping[ServedMetric, Rows] = {
    served: [
        (tuple(f"{label} {row}" for label in served.labels), 1.5 + row) for row in range(2 if served.labels else 1)
    ]
    for served in CATALOGUE
}
"""Every metric of the catalogue, with two rows where it has labels."""


class Clock:
    """A clock that a test sets, and rows that count how often they are gathered."""

    def __init__(self, rows: Mapping[ServedMetric, Rows] = EVERYTHING) -> None:
        self.now_s, self.gathered, self.rows = 0.0, 0, rows
        self.exposition = Exposition(self.gather, lambda: self.now_s)

    def gather(self) -> Mapping[ServedMetric, Rows]:
        self.gathered += 1
        return self.rows

    def text(self) -> str:
        return self.exposition.page(as_openmetrics=False, compressed=False).body.decode()


def test_every_metric_is_in_the_text_format() -> None:
    clock = Clock()
    page = clock.exposition.page(as_openmetrics=False, compressed=False)
    assert page.content_type == TEXT
    families = {family.name: family for family in read_text(page.body.decode())}
    assert families.keys() == {served.name.removesuffix("_total") for served in CATALOGUE}
    for served in CATALOGUE:
        family = families[served.name.removesuffix("_total")]
        assert family.documentation == served.help_text
        assert {sample.name for sample in family.samples} == {served.name}
        assert all(tuple(sorted(sample.labels)) == tuple(sorted(served.labels)) for sample in family.samples)


def test_every_metric_is_in_the_openmetrics_format() -> None:
    page = Clock().exposition.page(as_openmetrics=True, compressed=False)
    assert page.content_type == OPENMETRICS
    assert page.body.endswith(b"# EOF\n")
    names = {sample.name for family in read_openmetrics(page.body.decode()) for sample in family.samples}
    assert names == {served.name for served in CATALOGUE}


@pytest.mark.process
def test_promtool_has_nothing_to_say() -> None:
    checked = subprocess.run(
        [program("promtool"), "check", "metrics"], input=Clock().text(), capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_compressed_page_is_the_same_page() -> None:
    clock = Clock()
    page = clock.exposition.page(as_openmetrics=False, compressed=True)
    assert page.compressed
    assert gzip.decompress(page.body).decode() == clock.text()


def test_a_page_is_rendered_once_however_often_it_is_asked_for() -> None:
    clock = Clock()
    first = clock.text()
    clock.rows = {}
    clock.now_s += KEPT_S / 2
    assert [clock.text() for _ in range(100)] == [first] * 100
    clock.exposition.page(as_openmetrics=True, compressed=True)
    assert clock.gathered == 1
    clock.now_s += KEPT_S
    assert clock.text() == ""
    assert clock.gathered == 2


def test_nothing_is_added_to_the_registry_that_all_share() -> None:
    clock = Clock()
    clock.text()
    assert b"gpudash_" not in prometheus_client.generate_latest(prometheus_client.REGISTRY)
    assert "python_info" not in clock.text()


INFO = next(served for served in CATALOGUE if served.name == "gpudash_gpu_process_memory_bytes")


@given(st.text(st.characters(exclude_categories=())))
def test_any_name_of_a_process_can_be_rendered(name: str) -> None:
    text = Clock({INFO: [(("GPU-0", "0", "7", name), 1.0)]}).text()
    (family,) = read_text(text)
    (sample,) = family.samples
    assert len(sample.labels["name"]) <= LONGEST_LABEL
    assert sample.labels["pid"] == "7"
