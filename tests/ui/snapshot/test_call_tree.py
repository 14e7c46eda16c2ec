"""Call trees in rectangles: areas are bytes, nothing overlaps, and what is too small is left out."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gpudash.ui.snapshot.drawing.call_tree import TreeBranch, beneath, branch_text, icicle, own_code, treemap, whole
from tests.unit.memory.snapshot.made import FORWARD, TRAIN


def limb(name: str, size: int, *children: TreeBranch) -> TreeBranch:
    return TreeBranch(name, f"/home/mia/{name}.py", 1, size, 1, children)


ROOT = limb("main", 100, limb("model", 70, limb("attention", 40), limb("mlp", 30)), limb("loss", 30))


def test_a_frame_of_the_icicle_is_as_wide_as_its_share() -> None:
    boxes = {box.branch.name: box for box in icicle(ROOT, 1000.0, 20.0)}
    assert [boxes[name].width for name in ("main", "model", "attention", "loss")] == [1000, 700, 400, 300]
    assert (boxes["mlp"].left, boxes["mlp"].top) == (400, 40)
    assert [frame[2] for frame in boxes["mlp"].path] == ["model", "mlp"]


def test_what_is_narrower_than_a_pixel_is_left_out_with_all_it_called() -> None:
    thin = limb("main", 10_000, limb("big", 9_999), limb("small", 1, limb("inner", 1)))
    assert {box.branch.name for box in icicle(thin, 1000.0, 20.0)} == {"main", "big"}


sizes = st.lists(st.integers(1, 10**9), min_size=1, max_size=25)


@given(sizes, st.floats(60, 2000), st.floats(60, 2000))
def test_the_treemap_fills_its_room_without_overlaps(found: list[int], width: float, height: float) -> None:
    root = limb("main", 2 * sum(found), *(limb(f"f{n}", size) for n, size in enumerate(found)))
    boxes = [box for box in treemap(root, width, height) if box.depth == 1]
    for box in boxes:
        assert box.left >= 0 and box.top >= 0
        assert box.left + box.width <= width + 1e-6 and box.top + box.height <= height + 1e-6
    for one, other in combinations(boxes, 2):
        apart = (
            one.left + one.width <= other.left + 1e-6
            or other.left + other.width <= one.left + 1e-6
            or one.top + one.height <= other.top + 1e-6
            or other.top + other.height <= one.top + 1e-6
        )
        assert apart


@given(st.lists(st.integers(10**6, 2 * 10**6), min_size=2, max_size=8))
def test_areas_of_the_treemap_are_in_proportion_to_bytes(found: list[int]) -> None:
    root = limb("main", sum(found), *(limb(f"f{n}", size) for n, size in enumerate(found)))
    boxes = {box.branch.name: box for box in treemap(root, 800.0, 600.0) if box.depth == 1}
    each = [boxes[f"f{n}"].width * boxes[f"f{n}"].height / size for n, size in enumerate(found)]
    assert max(each) <= min(each) * 1.0001


def test_a_path_leads_to_its_branch_or_nowhere() -> None:
    path = (("/home/mia/model.py", 1, "model"), ("/home/mia/mlp.py", 1, "mlp"))
    found = beneath(ROOT, path)
    assert found is not None and found.bytes == 30
    assert beneath(ROOT, (*path, ("x.py", 1, "x"))) is None


def test_what_has_no_stack_is_a_branch_of_its_own_for_each_category() -> None:
    without = {"gradients": (25, 3), "weights": (0, 0), "no stack recorded": (10, 2)}
    root = whole(limb("", 95, limb("model", 60)), without)
    assert [(child.name, child.bytes, child.count) for child in root.children] == [
        ("model", 60, 1),
        ("gradients, no stack recorded", 25, 3),
        ("no stack recorded", 10, 2),
    ]


def test_own_code_is_the_stack_without_library_frames() -> None:
    assert own_code(FORWARD) == ((TRAIN, 41, "step"), (TRAIN, 90, "<module>"))
    assert own_code((("/venv/lib/python3.12/site-packages/torch/nn/init.py", 3, "f"), ("??", 0, "c"))) == (
        ("/venv/lib/python3.12/site-packages/torch/nn/init.py", 3, "f"),
    )
    assert own_code(()) == ()


def test_a_frame_is_called_by_file_line_and_function() -> None:
    assert branch_text(limb("mlp", 3)) == "mlp.py:1 mlp"
    assert branch_text(TreeBranch("all", "", 0, 3, 1)) == "all"
