"""Losses in what a program prints: found by the names of fields, in whatever else is printed, and never made up."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.session.watching.output.log import LONGEST_LINE
from gpudash.session.watching.output.printed_metrics import (
    HELD_S,
    LINE_BYTES,
    LINES_AT_ONCE,
    LINES_PER_SECOND,
    PATTERN_S,
    Printed,
    PrintedMetrics,
    check_pattern,
)


def printed(*pieces: str | bytes, pattern: str = "") -> list[Printed]:
    """What is read of the standard output that comes in these pieces."""
    metrics = PrintedMetrics(pattern)
    for piece in pieces:
        metrics.feed(1, piece.encode() if isinstance(piece, str) else piece, 1.0)
    metrics.end()
    return metrics.take()[0]


TOLD = [
    ("step 20 loss 2.32", 20, None, 2.32, None),
    ("epoch 3/10 … loss=0.41", None, 3, 0.41, None),
    ("| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch  5.1 | loss  7.63 | ppl  2064.6", 200, 1, 7.63, None),
    ("iter 10: loss 3.2345, time 33.00ms, mfu -100.00%", 10, None, 3.2345, None),
    ("step 0: train loss 4.2874, val loss 4.2823", 0, None, 4.2874, None),
    ("step 0: val loss 4.2823, train loss 4.2874", 0, None, 4.2874, None),
    ('{"step": 3, "kl_loss": 2, "loss": 0.5, "note": "loss: 7"}', 3, None, 0.5, None),
    ('{"epoch": 1, "train": {"loss": 0.5, "acc": 0.25}}', None, 1, 0.5, 0.25),
    ("{'loss': 0.5, 'grad_norm': 1.2, 'epoch': 1}", None, 1, 0.5, None),
    ("{'loss': '0.5', 'learning_rate': '5e-05', 'epoch': '1.5'}", None, 1.5, 0.5, None),
    ("Epoch 1:  45%|████▌     | 45/100 [00:01<00:01, 40.1it/s, loss=0.512, acc=0.9]", 45, 1, 0.512, 0.9),
    ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.300000", None, 1, 2.3, None),
    ("Epoch: [0][ 10/5005]\tTime 0.5 ( 1.2)\tLoss 6.9e+00 (6.95e+00)\tAcc@1  12.50 ( 0.10)", 10, 0, 6.9, 0.125),
    (" iteration       10/  500000 | lm loss: 1.05E+01 | loss scale: 1.0 |", 10, None, 10.5, None),
    ("45/100 [====>.....] - ETA: 0s - loss: 0.5 - accuracy: 0.8", 45, None, 0.5, 0.8),
    ("loss: tensor(2.3026, device='cuda:0', grad_fn=<NllLossBackward0>)", None, None, 2.3026, None),
    ("2024-01-01 10:00:00,123 INFO trainer: step 20 loss 2.32", 20, None, 2.32, None),
    ("\x1b[32mINFO\x1b[0m Train Loss: \x1b[1m0.25\x1b[0m Train Acc: 87.5%", None, None, 0.25, 0.875),
    ("rank0 loss 1.5.", None, None, 1.5, None),
]


@pytest.mark.parametrize(("line", "step", "epoch", "loss", "accuracy"), TOLD, ids=range(len(TOLD)))
def test_a_loss_is_found_by_the_name_of_its_field(
    line: str, step: int | None, epoch: float | None, loss: float | None, accuracy: float | None
) -> None:
    (found,) = printed(f"{line}\n")
    assert (found.step, found.epoch, found.loss, found.accuracy) == (step, epoch, loss, accuracy)


VALIDATED = [
    ("| end of epoch   1 | time:  2.30s | valid loss  5.41 | valid ppl   223.4", None, 5.41),
    ("Test set: Average loss: 0.0486, Accuracy: 9841/10000 (98%)", None, 0.0486),
    ("step 0: train loss 4.2874, val loss 4.2823", 4.2874, 4.2823),
    ("step 0: val loss 4.2823, train loss 4.2874", 4.2874, 4.2823),
    ("{'eval_loss': 0.5, 'eval_runtime': 1.2, 'epoch': 1.0}", None, 0.5),
    ('{"epoch": 1, "train": {"loss": 0.5}, "val": {"loss": 0.75}}', 0.5, 0.75),
    ("45/45 [====] - loss: 0.5 - val_loss: nan", 0.5, math.nan),
]


@pytest.mark.parametrize(("line", "loss", "val_loss"), VALIDATED, ids=range(len(VALIDATED)))
def test_the_loss_of_a_validation_is_told_apart(line: str, loss: float | None, val_loss: float) -> None:
    (found,) = printed(f"{line}\n")
    assert found.loss == loss
    assert found.val_loss == pytest.approx(val_loss, nan_ok=True)
    assert len(found.fields) >= (1 if loss is None else 2)


@pytest.mark.parametrize(
    "line",
    [
        "3 packets transmitted, 3 received, 0% packet loss, time 2ms",
        "kl loss 0.3 focal_loss 2 best val loss 0.2 loss_scale 65536 gloss 1",
        "loss 1,234.5 loss 12.5.3 loss 33ms loss 5% loss 3/4 loss 10/s loss 0x10 loss 2a",
        "saved to /runs/loss 7/model: it stopped at 0.5 and the accuracy was fine",
        '{"loss": [0.5], "acc": true, "other": {"deep": {"loss": 1}}}',
        '{"loss": "about 5"}',
        "train.py loss.py:20: no loss here, 20 lines",
        "accuracy 3/0",
        "loss: ٣.٥",
    ],
)
def test_no_other_number_is_taken_for_a_loss(line: str) -> None:
    assert [metric for metric in printed(f"{line}\n") if metric.loss is not None or metric.accuracy == 1] == []


def test_nan_and_infinities_are_kept_as_they_are() -> None:
    first, second, third = printed('loss nan\ntrain_loss=-inf\n{"loss": Infinity}\n')
    assert first.loss is not None and math.isnan(first.loss)
    assert (second.loss, third.loss) == (-math.inf, math.inf)


def test_losses_of_training_and_validation_are_never_mixed() -> None:
    text = "val_loss=3.0\nstep 1 loss 2.0\n[eval] loss 9.0\neval: step 1 loss 8.0\nloss 1.0 val_acc 0.5\n"
    assert [(found.loss, found.val_loss, found.accuracy) for found in printed(text)] == [
        (None, 3.0, None),
        (2.0, None, None),
        (None, 9.0, None),
        (None, 8.0, None),
        (1.0, None, 0.5),
    ]


@pytest.mark.parametrize(
    ("line", "losses", "step"),
    [
        (
            "[0/25][3/1583] Loss_D: 1.3719 Loss_G: 0.7 D(x): 0.5 D(G(z)): 0.4 / 0.3",
            {"Loss_D": 1.3719, "Loss_G": 0.7},
            3,
        ),
        ("[Epoch 0/200] [Batch 5/938] [D loss: 0.693] [G loss: nan]", {"D loss": 0.693, "G loss": math.nan}, 5),
        (
            "\r[Epoch 0/200] [Batch 5/200] [D loss: 0.25] [G loss: 40.5, pixel: 0.39, adv: 1.1] ETA: 0:01:02.12",
            {"D loss": 0.25, "G loss": 40.5},
            5,
        ),
        ("{'step': 4, 'loss/actor': 0.5, 'critic_loss': 2}", {"loss/actor": 0.5, "critic_loss": 2.0}, 4),
    ],
    ids=["dcgan", "gan", "pix2pix", "dictionary"],
)
def test_several_losses_are_each_their_own(line: str, losses: dict[str, float], step: int) -> None:
    (found,) = printed(f"{line}\n")
    assert (found.loss, found.step, found.fields) == (None, step, tuple(losses))
    assert dict(found.losses) == pytest.approx(losses, nan_ok=True)


def test_a_line_that_is_written_over_and_evaluations_between_leave_the_losses_of_a_gan_what_they_are() -> None:
    batch = "\r[Epoch 0/1] [Batch {}/3] [D loss: {}, acc: {}%] [G loss: 1.5]"
    text = (
        f"{batch.format(0, 0.5, 12)}\n[val pixel loss: 0.47]{batch.format(1, 0.25, 14)}\n[val D loss: 9.0, acc: 90%]\n"
    )
    found = printed(text)
    told = [(each.step, dict(each.losses), each.accuracy) for each in found if each.losses]
    assert told == [(0, {"D loss": 0.5, "G loss": 1.5}, 0.12), (1, {"D loss": 0.25, "G loss": 1.5}, 0.14)]
    assert {name for each in found for name in each.skipped} == {"val pixel loss", "val D loss"}
    assert {each.accuracy for each in found if not each.losses} == {None}


def test_parts_beside_the_loss_are_not_taken_and_named_once() -> None:
    found = printed("loss: 1.0, kl_loss: 0.5, loss_box: 0.25\nloss: 2.0, kl_loss: 0.5\nkl_loss: 0.25\n")
    assert [(each.loss, dict(each.losses), each.skipped) for each in found] == [
        (1.0, {}, ("kl_loss", "loss_box")),
        (2.0, {}, ()),
    ]


def test_prose_and_what_is_no_loss_is_none_of_several() -> None:
    found = printed("D loss 0.5\nbest_loss: 1 loss_scale=65536 packet loss: 3 weight_loss: 2\n")
    assert [(dict(each.losses), each.skipped) for each in found] == [({}, ("D loss",))]


def test_what_an_evaluation_says_of_the_training_data_is_no_step_s_loss() -> None:
    """nanoGPT: an evaluation before the first step, and others between."""
    evaluation = "step {0}: train loss {0}.5, val loss {0}.75\n"
    text = f"{evaluation.format(4)}iter 0: loss 4.25, time 5ms\n{evaluation.format(3)}iter 9: loss 3.25, time 5ms\n"
    assert [(each.loss, each.val_loss, dict(each.losses)) for each in printed(text)] == [
        (None, 4.75, {"train loss": 4.5}),
        (4.25, None, {}),
        (None, 3.75, {"train loss": 3.5}),
        (3.25, None, {}),
    ]


def test_where_only_evaluations_tell_a_loss_of_training_it_is_the_run_s() -> None:
    text = "step 0: train loss 4.5, val loss 4.75\nstep 500: train loss 2.5, val loss 2.75\n"
    assert [(each.loss, each.val_loss) for each in printed(text)] == [(4.5, 4.75), (2.5, 2.75)]


def test_a_line_that_may_be_an_evaluation_s_waits_for_a_step_only_so_long() -> None:
    metrics = PrintedMetrics()
    metrics.feed(1, b"step 0: train loss 4.5, val loss 4.75\n", 1.0)
    assert metrics.take(1.0 + HELD_S)[0] == []
    assert [(each.loss, each.val_loss) for each in metrics.take(1.5 + HELD_S)[0]] == [(4.5, 4.75)]


def test_batches_of_a_validation_are_no_steps() -> None:
    found = printed("step 200 loss 2.0\nvalidation: 3/50 batches | loss 2.5\nstep 200: train loss 2.0, val loss 2.25\n")
    assert [(each.step, each.total, each.val_loss) for each in found] == [
        (200, None, None),
        (None, None, 2.5),
        (200, None, 2.25),
    ]


def test_accuracies_of_a_validation_are_left_out_once_there_are_some_of_a_training() -> None:
    text = "val_acc 0.5\nacc 0.75\nval_acc 0.5\n"
    assert [found.accuracy for found in printed(text)] == [0.5, 0.75]


@pytest.mark.process
def test_a_pattern_of_one_s_own_may_name_the_loss_of_a_validation() -> None:
    pattern = r"L=(?P<loss>[.0-9]+)( V=(?P<val_loss>[.0-9]+))?"
    check_pattern(pattern)
    check_pattern(r"V=(?P<val_loss>[.0-9]+)")
    assert [(found.loss, found.val_loss) for found in printed("L=2 V=3\nL=1\n", pattern=pattern)] == [(2, 3), (1, None)]


def test_accuracies_above_one_are_in_per_cent_and_what_no_accuracy_can_be_is_left_out() -> None:
    found = printed("loss 1 acc 0.5\nloss 1 acc 62.5\nloss 1 acc 0.5\nloss 1 acc 1e9\nloss 1 acc -3\n")
    assert [each.accuracy for each in found] == [0.5, 0.625, 0.005, None, None]


def test_a_line_that_is_not_whole_waits_and_has_the_time_at_which_it_came() -> None:
    metrics = PrintedMetrics()
    metrics.feed(2, b"\r 1/9 [00:01<00:08, loss=0.5", 1.0)
    metrics.feed(1, b"loss 7", 2.0)
    metrics.feed(2, b"12]", 3.0)
    assert metrics.take() == ([], "")
    metrics.feed(2, b"\r 2/9 [", 8.0)
    metrics.feed(1, b"\n", 9.0)
    assert [(found.time_s, found.loss) for found in metrics.take()[0]] == [(3.0, 0.512), (2.0, 7.0)]


def test_a_line_of_which_something_is_missing_is_not_read() -> None:
    metrics = PrintedMetrics()
    metrics.feed(1, b"step 5 loss 1", 1.0)
    metrics.feed(1, None, 1.0)
    metrics.feed(1, b"3.5 loss 7\nloss 3\n", 1.0)
    assert [found.loss for found in metrics.take()[0]] == [3.0]


@given(st.floats(allow_subnormal=False), st.integers(0, 10**15 - 1), st.sampled_from(["train_loss", "Loss", "loss"]))
def test_a_loss_that_is_printed_is_read_as_it_was(loss: float, step: int, name: str) -> None:
    forms = [f"step {step}: {name} {loss}", f"{step}/{step} [00:00<00:00, {name}={loss}]", f"{{'{name}': {loss}}}"]
    for found in printed("\n".join([*forms, ""])):
        assert found.loss == loss or (math.isnan(loss) and found.loss != found.loss)
        assert found.step in (step, None)


@given(st.text(st.characters(exclude_characters="\r\n"), max_size=300), st.floats(0, 1e6))
def test_whatever_else_is_printed_nothing_is_made_up(noise: str, loss: float) -> None:
    """Every loss that is told stands in the text behind a name that holds "loss"."""
    for line in (noise, f"{noise} | loss {loss:.4f}", f"loss={loss:.4f} {noise}"):
        for found in printed(f"{line}\n"):
            assert "loss" in line.lower() or found.loss is None
            assert found.accuracy is None or 0 <= found.accuracy <= 1 or math.isnan(found.accuracy)


@given(st.binary(max_size=400), st.lists(st.integers(0, 500), max_size=5))
def test_where_pieces_are_cut_makes_no_difference(data: bytes, places: list[int]) -> None:
    data += b"\nstep 3 loss 0.5\r\n\rloss=1 \n"
    edges = [0, *sorted(place for place in places if place <= len(data)), len(data)]
    pieces = [data[begin:end] for begin, end in itertools.pairwise(edges)]
    assert printed(*pieces) == printed(data)


@pytest.mark.parametrize(
    "line",
    [
        "loss " * 800,
        "loss" + " " * 4000,
        "a/" * 2000 + "loss",
        "loss 1" * 600,
        "1/" * 2000 + "loss",
        "{" * 4000 + "loss",
    ],
)
def test_hostile_lines_are_read_as_fast_as_others(line: str) -> None:
    assert len(line) <= LONGEST_LINE
    printed(*[f"{line}\n"] * 200)


def test_a_line_without_end_takes_no_memory_and_tells_nothing() -> None:
    metrics = PrintedMetrics()
    for _ in range(2000):
        metrics.feed(1, b"loss 1 " * 9000, 1.0)
    metrics.feed(1, b"\nloss 2\n", 1.0)
    assert [found.loss for found in metrics.take()[0]] == [2.0]


def test_of_a_flood_the_newest_lines_are_read() -> None:
    metrics = PrintedMetrics()
    for turn in range(10):
        metrics.feed(1, b"".join(b"loss %d\n" % (turn * 10_000 + place) for place in range(10_000)), turn * 0.1)
    found, _ = metrics.take()
    assert LINES_AT_ONCE <= len(found) <= LINES_AT_ONCE + LINES_PER_SECOND
    assert found[-1].loss == 99_999


def test_of_a_flood_of_long_lines_fewer_are_read() -> None:
    metrics = PrintedMetrics()
    for turn in range(10):
        metrics.feed(1, (b"loss 1 " * 500 + b"\n") * 100, turn * 0.1)
    assert 0 < len(metrics.take()[0]) <= (LINES_AT_ONCE + LINES_PER_SECOND) // (3500 // LINE_BYTES)


PATTERN = r"it (?P<step>\d+) L=(?P<loss>\S+)"


@pytest.mark.process
def test_a_pattern_of_ones_own_takes_the_place_of_names() -> None:
    found = printed("it 5 L=0.25\nloss 7\nit 6 L=nothing\nit 7 L=nan\n", pattern=PATTERN)
    assert [(each.step, str(each.loss)) for each in found] == [(5, "0.25"), (7, "nan")]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?P<loss>", "no regular expression"),
        ("(" * 900, "no regular expression"),
        ("loss (.*)", "no group named loss"),
        ("x" * 5000, "at most"),
    ],
    ids=["open", "deep", "nameless", "long"],
)
def test_a_bad_pattern_is_one_sentence(pattern: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        check_pattern(pattern)
    assert str(refusal.value).count("\n") == 0 and len(str(refusal.value)) < 200


@pytest.mark.process
def test_a_pattern_that_would_match_for_ever_is_left_and_said_to_be() -> None:
    pattern = r"(?P<loss>(a+)+)$"
    check_pattern(pattern)
    metrics = PrintedMetrics(pattern)
    metrics.feed(1, b"a" * 60 + b"!\n", 1.0)
    metrics.feed(1, b"a\n", 1.0)
    found, problem = metrics.take()
    assert found == [] and problem.startswith(f"The pattern for losses took longer than {PATTERN_S:.0f} s")
    assert metrics.take() == ([], "")
    metrics.end()


PIX2PIX = "(epoch: 1, iters: {}, time: 0.044, data: 0.321) G_GAN: {} G_L1: 33.417 D_real: 0.634 D_fake: 0.594 \n"
DCGAN = "[0/25][{}/1583]\tLoss_D: {}\tLoss_G: 2.4640\tD(x): 0.3612\tD(G(z)): 0.4563 / 0.1157\n"


def test_the_losses_of_public_gans_are_curves_of_their_own() -> None:
    first, second = printed(DCGAN.format(0, 1.98), DCGAN.format(50, 0.03))
    assert (first.step, first.losses) == (0, {"Loss_D": 1.98, "Loss_G": 2.464})
    assert (second.step, second.losses["Loss_D"]) == (50, 0.03)
    first, second = printed(PIX2PIX.format(100, 1.284), PIX2PIX.format(200, 1.484))
    assert first.losses == {"G_GAN": 1.284, "G_L1": 33.417, "D_real": 0.634, "D_fake": 0.594}
    assert (second.step, second.epoch, second.losses["G_GAN"]) == (200, 1, 1.484)
    line = "(epoch: 1, iters: 100, time: 0.288, data: 0.204) , D_A: 0.303, G_A: 0.412, cycle_A: 2.471, idt_A: 0.988\n"
    assert printed(line)[0].losses == {"D_A": 0.303, "G_A": 0.412, "cycle_A": 2.471, "idt_A": 0.988}


def test_a_progress_bar_of_lightning_tells_an_evaluation_once_and_no_mean_of_an_epoch() -> None:
    bar = "Epoch {}: 10%|█   | {}/938 [00:01<00:09, 93.8it/s, v_num=0, train_loss_step={}{}]\r"
    ended = ", val_loss_step=0.7, val_loss_epoch=0.512, train_loss_epoch=0.333"
    lines = (bar.format(0, 938, 0.342, ""), bar.format(1, 93, 0.222, ended), bar.format(1, 94, 0.221, ended))
    found = printed(*lines)
    assert [one.loss for one in found] == [0.342, 0.222, 0.221]
    assert [one.val_loss for one in found] == [None, 0.512, None]
    assert not any(one.losses for one in found)


def test_the_mean_of_a_whole_run_is_no_step_s_loss_and_is_named() -> None:
    steps = "{'loss': 2.34, 'epoch': 0.5}\n{'eval_loss': 2.05, 'eval_runtime': 3.1, 'epoch': 1.0}\n"
    found = printed(steps, "{'train_runtime': 60.1, 'train_loss': 2.24, 'epoch': 1.0}\n")
    assert [(one.loss, one.val_loss) for one in found] == [(2.34, None), (None, 2.05), (None, None)]
    assert found[-1].skipped == ("train_loss",)
