"""One selection for all panes; the newest choice goes back first."""

from __future__ import annotations

from gpudash.ui.snapshot.selection import NOTHING, Selection, Selector


def test_every_change_is_told_once_and_no_change_is_not() -> None:
    told: list[Selection] = []
    selector = Selector()
    selector.listen(told.append)
    selector.change(category="weights")
    selector.change(category="weights")
    assert told == [Selection(category="weights")]


def test_the_newest_choice_goes_back_first() -> None:
    selector = Selector()
    selector.change(category="weights")
    selector.change(search="train")
    selector.change(category="gradients")
    assert selector.take_back() and selector.now == Selection(search="train")
    assert selector.take_back() and selector.now == NOTHING
    assert not selector.take_back()


def test_the_two_moments_of_a_comparison_go_back_together() -> None:
    selector = Selector()
    selector.change(search="train")
    selector.change(moment=9, compared=4)
    selector.take_back()
    assert selector.now == Selection(search="train")


def test_what_was_taken_away_by_hand_is_not_taken_back_again() -> None:
    selector = Selector()
    selector.change(category="weights")
    selector.change(category="")
    assert not selector.take_back()


def test_only_what_leaves_blocks_out_narrows() -> None:
    assert not Selection(moment=3, compared=1).narrowed
    assert Selection(search="x").narrowed and Selection(category="x").narrowed
