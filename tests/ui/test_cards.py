"""Device cards: what they say of a device in the room they have."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace

import pytest
from PySide6.QtGui import QColor, QFontMetrics
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.devices.known_gpus import find
from gpudash.devices.names import Device, Gpu, short_product, simulated_gpu
from gpudash.memory.predicting.card_text import CardsAnswer
from gpudash.memory.predicting.estimate import CardEstimate
from gpudash.telemetry.metrics import GPU_METRICS, SENSORS
from gpudash.telemetry.records import Sample, State
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK, Palette, contrast
from gpudash.ui.dashboard import cards
from gpudash.ui.dashboard.cards import Card, CardContent, DeviceCards, device_rows, gpu_card, host_card
from gpudash.ui.fleet import gpu_document
from gpudash.ui.widgets.labels import fitting_text
from gpudash.units import GIB
from tests.ui.conftest import IN_BOTH_THEMES
from tests.ui.fake_session import FakeSession, gpu

CONTENT = CardContent(
    key="GPU-1",
    device="cuda:0",
    product="RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    used=12.0 * GIB,
    total=24.0 * GIB,
    memory_name="VRAM",
    bands=[("other", 6.0 * GIB, "other processes"), ("allocated", 6.0 * GIB, "allocated")],
    mark_ratio=0.85,
    facts=("97 %", "71 °C", "412 W", "Gen4 x16"),
)


def made(qtbot: QtBot, width: int, *, compact: bool = False, content: CardContent = CONTENT) -> Card:
    card = Card("GPU-1", DARK)
    qtbot.addWidget(card)
    card.set_compact(compact)
    card.resize(width, 84)
    card.show()
    card.show_content(content, DARK, selected=False)
    return card


def test_a_wide_card_shows_the_whole_name_and_every_fact(qtbot: QtBot) -> None:
    card = made(qtbot, 900)
    assert card._name.text() == f"cuda:0 · {CONTENT.product}"
    assert card._facts.text() == "97 %   71 °C   412 W   Gen4 x16"


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("width", [180, 220, 260, 340, 500])
def test_a_narrow_card_drops_whole_words_and_facts_from_the_end(qtbot: QtBot, width: int, compact: bool) -> None:
    card = made(qtbot, width, compact=compact)
    name, facts = card._name.text(), card._facts.text()
    assert name.startswith("cuda:0") and f"cuda:0 · {CONTENT.product}".startswith(name)
    assert not name.endswith(("·", " ", "…"))
    assert "97 %   71 °C   412 W   Gen4 x16".startswith(facts)
    assert CONTENT.product in card.toolTip()


def test_a_card_made_compact_and_back_has_its_figures_where_they_were(qtbot: QtBot) -> None:
    card = made(qtbot, 500)

    def places() -> list[tuple[int, int]]:
        gc.collect()
        QApplication.sendPostedEvents()
        card._outer.activate()
        return [(part.x(), part.y()) for part in (card._name, card._used, card._total, card._facts, card._bar)]

    before = places()
    assert before[1][1] > before[0][1], "the figures have a line of their own"
    for _again in range(3):
        card.set_compact(True)
        name, used, total, facts, bar = places()
        assert name[0] < facts[0] and used[0] < total[0]
        assert bar[1] > used[1] > name[1]
        card.set_compact(False)
        assert places() == before


def test_words_are_never_cut_and_the_first_always_stays(qapp: QApplication) -> None:
    metrics = QFontMetrics(qapp.font())
    assert fitting_text("cuda:0 · RTX 4090", metrics, 10_000) == "cuda:0 · RTX 4090"
    assert fitting_text("cuda:0 · RTX 4090", metrics, 0) == "cuda:0"
    room = metrics.horizontalAdvance("cuda:0 · RTX") + 1
    assert fitting_text("cuda:0 · RTX 4090", metrics, room) == "cuda:0 · RTX"


def test_a_narrow_card_drops_figures_before_it_cuts_a_product_in_two(qtbot: QtBot) -> None:
    content = replace(CONTENT, device="GPU 0", product="RTX 4090 Laptop GPU", facts=("37 %", "41 °C", "120 W"))
    cores = replace(CONTENT, device="cpu", product="EPYC, 2 cores", facts=("100 %", "swap 0"))
    seen = set()
    for of_card in (content, cores):
        card = made(qtbot, 80, content=of_card)
        for width in range(80, 500, 4):
            card.resize(width, 84)
            seen.add(card._name.text())
    assert seen == {
        "GPU 0 · RTX 4090",
        "GPU 0 · RTX 4090 Laptop",
        "GPU 0 · RTX 4090 Laptop GPU",
        "cpu · EPYC",
        "cpu · EPYC, 2 cores",
    }


def test_a_reading_that_was_not_had_is_no_zero(qtbot: QtBot) -> None:
    card = made(qtbot, 400, content=CardContent("GPU-1", "cuda:0", "RTX 4090", None, None, "VRAM"))
    assert card._used.text() == "–"
    assert card._total.text() == "VRAM: not reported"
    assert "not reported" in card.accessibleName()


@IN_BOTH_THEMES
def test_the_bar_draws_bands_and_warning_level_to_scale(qtbot: QtBot, palette: Palette) -> None:
    card = made(qtbot, 500)
    card.show_content(CONTENT, palette, selected=False)
    bar = card._bar
    image = bar.grab().toImage()
    at = {ratio: image.pixelColor(round(bar.width() * ratio), 4) for ratio in (0.1, 0.4, 0.7, 0.85)}
    assert at[0.1] == QColor(palette.curves["other"])
    assert at[0.4] == QColor(palette.curves["allocated"])
    assert at[0.7] == QColor(palette.window)
    assert at[0.85] == QColor(palette.critical)


@IN_BOTH_THEMES
def test_the_bar_draws_the_file_cache_as_faint_as_the_plot_beside_what_is_in_use(
    qtbot: QtBot, palette: Palette
) -> None:
    card = made(qtbot, 500)
    bands = [("process", 1 * GIB, "this process"), ("cache", 5 * GIB, "file cache")]
    card.show_content(replace(CONTENT, used=1 * GIB, total=10 * GIB, bands=bands), palette, selected=False)
    bar = card._bar
    image = bar.grab().toImage()
    used, cache = (image.pixelColor(round(bar.width() * ratio), 4) for ratio in (0.05, 0.3))
    assert used == QColor(palette.curves["process"])
    apart = contrast(cache.name(), palette.window)
    assert 1.1 < apart < contrast(used.name(), palette.window), "seen, and less than what is in use"


def test_cards_are_kept_while_their_device_is(qtbot: QtBot) -> None:
    cards = DeviceCards(DARK)
    qtbot.addWidget(cards)
    contents = [CardContent(key, key, "", 1, 2, "VRAM") for key in ("a", "b", "c")]
    cards.show_contents(contents, "a")
    kept = cards._cards["c"]
    cards.show_contents([contents[2], contents[0]], "a")
    assert list(cards._cards) == ["c", "a"] and cards._cards["c"] is kept


def test_makers_and_trademarks_are_left_out_of_products() -> None:
    assert short_product("NVIDIA GeForce RTX 4090") == "RTX 4090"
    assert short_product("Intel(R) Core(TM) i7-9700K CPU @ 3.60GHz") == "Core i7-9700K"


def test_the_host_card_names_a_containers_limit() -> None:
    session = FakeSession().feed(0.2)
    device = Device("cpu", "AMD EPYC 9554", None)
    assert host_card(session.store, device, "RAM", 0.85).memory_name == "RAM"
    limited = host_card(session.store, device, "/sys/fs/cgroup/memory.max", 0.85)
    assert limited.memory_name == "of a limit" and "memory.max" in limited.details


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.LOST, "stopped answering"),
        (State.ASLEEP, "asleep, not woken"),
        (State.STALE, "driver does not answer"),
        (State.NO_PERMISSION, "not permitted"),
        (State.NOT_SUPPORTED, ""),
    ],
)
def test_each_state_of_a_gpu_has_its_words(state: State, words: str) -> None:
    store = Store()
    store.apply(Sample(1.0, "gpu", gpu(0).uuid, {"used_bytes": None}, {"used_bytes": state}))
    assert gpu_card(store, gpu(0), "cuda:0", 0.85).state == words


def test_a_simulated_card_that_answers_no_more_has_no_driver_to_blame() -> None:
    store = Store()
    card = simulated_gpu(0, GIB)
    store.apply(Sample(1.0, "gpu", card.uuid, {"used_bytes": None}, {"used_bytes": State.STALE}))
    assert gpu_card(store, card, "sim:0", 0.85).state == "the program is ending"


@pytest.mark.parametrize(
    ("name", "value", "words", "scale"),
    [
        ("memory_utilisation", 0.4, "40 %", "ratio"),
        ("pcie_rx_bytes_per_second", 2.5e10, "25.0 GB/s", "rate"),
        ("energy_j", 1.8e9, "1.80 GJ", "number"),
        ("driver_reserved_bytes", 2.0**30, "1.00 GiB", "bytes"),
    ],
)
def test_a_metric_with_a_colour_is_on_the_card_and_in_the_plots_of_the_past_whatever_it_counts(
    name: str, value: float, words: str, scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = replace(GPU_METRICS[name], title="one more", colour="power")
    for place in (cards, gpu_document):
        monkeypatch.setattr(place, "SENSORS", (*SENSORS, metric))
    store, key = Store(), gpu(0).uuid
    store.apply(Sample(1.0, "gpu", key, {"used_bytes": GIB, "total_bytes": 8 * GIB, name: value}))

    assert gpu_card(store, gpu(0), "cuda:0", 0.85).facts == [words]
    plots = gpu_document.past_plots(store, key, "there", 0.85, to_capacity=False)
    drawn_in = [plot.unit for plot in plots if ("gpu", name, key) in [curve.key for curve in plot.curves]]
    assert drawn_in == [scale], "in one plot, whether that is a plot of its own or not"


def test_a_card_says_first_what_is_not_as_it_should_be() -> None:
    store, key = Store(), gpu(0).uuid
    known = {"used_bytes": GIB, "total_bytes": 8 * GIB, "sm_clock_hz": 1.2e9, "memory_clock_hz": 2.6e9}
    links = {"nvlink_links": 18, "nvlink_rx_bytes_per_second": 2e10, "nvlink_tx_bytes_per_second": 1e10}
    store.apply(Sample(1.0, "gpu", key, {**known, "last_xid": 0, "clocks_event_reasons": 1}))
    well = gpu_card(store, gpu(0), "cuda:0", 0.85)
    assert well.facts == ["SM 1.20 GHz", "mem 2.60 GHz"]
    store.apply(Sample(2.0, "gpu", key, {"last_xid": 79, "clocks_event_reasons": 0x44, **links}))
    ill = gpu_card(store, gpu(0), "cuda:0", 0.85)
    assert ill.facts[:2] == ["XID 79", "slowed by power cap, heat"]
    assert "newest XID error: 79, it has fallen off the bus" in ill.details
    assert "18 NVLinks: 20.0 GB/s in, 10.0 GB/s out" in ill.details
    assert "NVLink" not in well.details and "XID" not in well.details


def test_the_devices_table_gives_every_reading_with_unit_and_state() -> None:
    session = FakeSession([gpu(0)]).feed(0.2)
    session.feed(0.1, lost=gpu(0).uuid)
    rows = device_rows(session.store, [("cpu", "host", None), ("cuda:0", "gpu", gpu(0).uuid)])
    found = {(device, reading): (value, state) for device, reading, value, state in rows}
    assert found["cpu", "capacity"] == ("128.0 GiB", "ok")
    assert found["cpu", "CPU"][0].endswith(" %")
    assert found["cuda:0", "power"] == ("not reported", "lost")


def test_the_card_of_a_gpu_without_memory_of_its_own_says_whose_it_is(qtbot: QtBot) -> None:
    shared = replace(gpu(0, "NVIDIA GB10"), shared_memory=True)
    session = FakeSession([shared])
    session.store.apply(Sample(1.0, "gpu", shared.uuid, {"used_bytes": 40 * GIB, "total_bytes": 120 * GIB}))
    session.store.apply(Sample(1.0, "process", shared.uuid, {"pid": 7, "memory_bytes": 9 * GIB}))
    content = gpu_card(session.store, shared, "cuda:0", 0.85)
    card = made(qtbot, 600, content=content)
    assert card._total.text() == "/ 120.0 GiB shared with the CPU"
    assert "held by programs on the GPU: 9.00 GiB" in card.toolTip()


def test_the_card_of_a_gpu_that_torch_tells_of_says_when_it_is_read(qtbot: QtBot) -> None:
    told = Gpu(0, "xpu:0", "", "Intel(R) Arc(TM) B580 Graphics", by_torch=True)
    store = FakeSession([told]).store
    card = made(qtbot, 600, content=gpu_card(store, told, "xpu:0", 0.85))
    assert card._total.text() == "read while a run uses it"
    store.apply(Sample(1.0, "gpu", "xpu:0", {"used_bytes": 4 * GIB, "total_bytes": 12 * GIB}))
    content = gpu_card(store, told, "xpu:0", 0.85)
    assert (content.state, content.used) == ("", 4 * GIB) and "reported by torch" in content.details


def test_a_simulated_card_names_the_gpu_it_is_like_beside_its_badge_also_where_there_is_little_room(
    qtbot: QtBot,
) -> None:
    like = replace(gpu(0, "Simulated RTX 4060"), simulated=True)
    card = made(qtbot, cards.COMPACT_PX, compact=True, content=gpu_card(FakeSession([like]).store, like, "sim:0", 0.85))
    assert card._name.text() == "sim:0 · RTX 4060"


def test_a_programs_own_card_names_its_gpu_once(qtbot: QtBot) -> None:
    like = replace(gpu(0, "Simulated RTX 4090"), simulated=True)
    content = gpu_card(FakeSession([like]).store, like, "sim:0@rtx4090", 0.85)
    card = made(qtbot, cards.COMPACT_PX, compact=True, content=content)
    assert card._name.text() == "sim:0 · RTX 4090"


def contents_of(gpus: Sequence[Gpu], used: Sequence[float]) -> list[CardContent]:
    store = FakeSession(gpus).store
    for one, size in zip(gpus, used, strict=True):
        total = 8 * GIB
        values = {"used_bytes": size, "total_bytes": total, "free_bytes": total - size}
        store.apply(Sample(1.0, "gpu", one.uuid, values))
    return [gpu_card(store, one, f"sim:{place}", 0.85) for place, one in enumerate(gpus)]


@pytest.fixture
def row(qtbot: QtBot) -> DeviceCards:
    row = DeviceCards(DARK)
    qtbot.addWidget(row)
    row.set_compact(True)
    return row


def alike(count: int) -> list[Gpu]:
    product = find("rtx4060")
    assert product is not None
    return [simulated_gpu(index, product) for index in range(count)]


def test_sixteen_equal_cards_are_one_with_their_number_their_sum_and_the_chosen_one(row: DeviceCards) -> None:
    contents = contents_of(alike(16), [GIB] + [0.0] * 15)
    row.show_contents(contents, contents[3].key)
    (card,) = row._cards.values()
    assert card._full_name == "16 × RTX 4060 ▾ · sim:3" and card.property("selected") is True
    assert (card._used.text(), card._total_texts[0]) == ("1.00", "/ 128.0 GiB VRAM")
    assert card.toolTip().count("of 8.00 GiB") == 16 and "16 × RTX 4060" in card.accessibleName()
    row.show_contents(contents, "host")
    assert card._full_name == "16 × RTX 4060 ▾ · sim:0 to sim:15" and card.property("selected") is False


def test_one_of_several_equal_cards_is_chosen_in_the_menu_of_their_card(row: DeviceCards, qtbot: QtBot) -> None:
    contents = contents_of(alike(8), [0.0] * 8)
    row.show_contents(contents, contents[0].key)
    short = CardEstimate("sim:0", 8 * GIB, 8 * GIB, 17 * GIB, 17 * GIB, fits=False, spare_bytes=-9 * GIB)
    answers = CardsAnswer({f"sim:{place}": short for place in range(8)}, requested=True)
    row.show_answers(answers, {content.key: f"sim:{place}" for place, content in enumerate(contents)})
    (card,) = row._cards.values()
    assert card._fit_verdict_text.text().startswith("✕ 9.0 GiB")
    actions = row.menu(contents[0].key).actions()
    assert [action.isChecked() for action in actions] == [True] + [False] * 7
    assert actions[5].text().startswith("sim:5: ") and "✕ 9.0 GiB short" in actions[5].text()
    with qtbot.waitSignal(row.chosen) as chosen:
        actions[5].trigger()
    assert chosen.args == [contents[5].key]


def test_a_few_cards_or_unequal_ones_or_one_that_is_lost_stand_alone(row: DeviceCards) -> None:
    three = contents_of(alike(3), [0.0] * 3)
    row.show_contents(three, "host")
    assert len(row._cards) == 3
    contents = contents_of(alike(5), [0.0] * 5)
    lost = replace(contents[1], state="stopped answering")
    other = replace(contents[2], product="L4", key="other")
    row.show_contents([contents[0], lost, *contents[3:], other], "host")
    assert len(row._cards) == 5
    row.show_contents([contents[0], lost, *contents[2:], other], "host")
    assert [card._full_name for card in row._cards.values()] == [
        "4 × RTX 4060 ▾ · sim:0 to sim:4",
        "sim:1 · RTX 4060",
        "sim:2 · L4",
    ]


def test_where_cards_have_no_room_each_has_its_name_and_the_row_scrolls(row: DeviceCards) -> None:
    gpus = [simulated_gpu(index, (index + 1) * 8 * GIB) for index in range(16)]
    contents = contents_of(gpus, [0.0] * 16)
    contents = [replace(one, product=f"card {place}") for place, one in enumerate(contents)]
    row.show_contents(contents, contents[0].key)
    assert row.sizeHint().height() < 60, "compact"
    row.resize(1000, row.sizeHint().height())
    row.show()
    short = CardEstimate("sim:0", 8 * GIB, 8 * GIB, 17 * GIB, 17 * GIB, fits=False, spare_bytes=-9 * GIB)
    answers = CardsAnswer({f"sim:{place}": short for place in range(16)}, requested=True)
    row.show_answers(answers, {content.key: f"sim:{place}" for place, content in enumerate(contents)})
    QApplication.processEvents()
    cards = list(row._cards.values())
    assert [card._name.text() for card in cards] == [f"sim:{place} · card {place}" for place in range(16)]
    assert {card._fit_verdict_text.text() for card in cards} <= {"✕ 9.0 GiB", "✕ 9.0 GiB short"}
    assert cards[0].visibleRegion().boundingRect().width() == cards[0].width() and cards[15].visibleRegion().isEmpty()
    cards[15].setFocus()
    QApplication.processEvents()
    assert cards[15].visibleRegion().boundingRect().width() == cards[15].width(), "the arrow keys reach the last"
