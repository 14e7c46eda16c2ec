"""What in a program filled the memory is read from its trace and its source together."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from gpudash.memory.allocator import AllocationRefused
from gpudash.memory.explaining.call_sites import SourceLine
from gpudash.memory.snapshot.causes.needless_graphs.evaluation import Flow
from gpudash.memory.snapshot.causes.optimizer_state import STATES
from gpudash.memory.snapshot.command_line import UNKNOWN_COMMAND, ProgramCommand
from gpudash.memory.snapshot.explaining import explain_history
from gpudash.memory.snapshot.history.batch_shapes import SeenTensor
from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.source_edits import SourceFile
from gpudash.telemetry.explanation import Explanation
from gpudash.units import MIB
from tests.end_to_end.out_of_memory.applying import disagreement
from tests.unit.memory.snapshot.made import BACKWARD, FORWARD, KEPT, OPTIMIZER, TRAIN, WEIGHTS, Made, explained

STEP = """\
def step(model, data):
    loss = model(data).mean()
    loss.backward()
"""


def explained_with(
    program: str,
    others: dict[str, str] | None = None,
    step: str = STEP,
    *,
    command: ProgramCommand = UNKNOWN_COMMAND,
    function: str = "step",
    weights: int = 30 * MIB,
) -> Explanation:
    """A first step of which the activations are too many, by a program whose model is called in line 41."""
    lines = program.splitlines()
    files = {TRAIN: [*lines, *[""] * (39 - len(lines)), *step.splitlines()]}
    files |= {name: text.splitlines() for name, text in (others or {}).items()}

    def source(file: str, line: int) -> str:
        text = files.get(file, [])
        return text[line - 1] if line <= len(text) else ""

    made = Made(capacity=200 * MIB)
    made.malloc(weights, WEIGHTS)
    made.until_full(60 * MIB, 0)
    device = made.device()
    stacks = [
        tuple((file, line, function if name == "step" else name) for file, line, name in stack)
        for stack in device.stacks
    ]
    history = History(replace(device, stacks=stacks), ())
    return explain_history(history, source=source, command=command)


def changed(patch: str) -> list[str]:
    return [row for row in patch.splitlines()[2:] if row[:1] in "+-"]


def test_what_makes_room_is_named_beside_what_does_alone_the_largest_first() -> None:
    program = """batch_size = 64
first = torch.optim.Adam(one.parameters(), lr=1e-3)
second = torch.optim.Adam(other.parameters(),)"""
    batch, optimizers = explained_with(program).savings[:2]
    assert changed(batch.patch) == ["-batch_size = 64", "+batch_size = 8"]
    assert not batch.verified_by and batch.fits is None
    assert optimizers.change.startswith("train.py:2 and train.py:3: foreach=False")
    assert optimizers.patch == ""  # behind a comma it would be no Python
    optimizers = explained_with(program.replace(",)", ")")).savings[1]
    assert [row for row in changed(optimizers.patch) if row[0] == "+"] == [
        "+first = torch.optim.Adam(one.parameters(), lr=1e-3, foreach=False)",
        "+second = torch.optim.Adam(other.parameters(), foreach=False)",
    ]


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("BATCH_SIZE = 64", "BATCH_SIZE = 16"),
        ("batch_size, rate = 64, 0.1", "batch_size, rate = 16, 0.1"),
        ("batch = 2**6", "batch = 16"),
        ("class Options:\n    batch_size: int = 64", "    batch_size: int = 16"),
        ("CONFIG = {'rate': 0.1, 'train': {'batch_size': 64}}", "CONFIG = {'rate': 0.1, 'train': {'batch_size': 16}}"),
        ("config['batch_size'] = 64", "config['batch_size'] = 16"),
        ("self.batch_size = 64", "self.batch_size = 16"),
        ("p.add_argument('-b', '--batch-size', default=64)", "p.add_argument('-b', '--batch-size', default=16)"),
        ("loader = DataLoader(data, batch_size=64)", "loader = DataLoader(data, batch_size=16)"),
        ("def load(data, batch_size=64):\n    pass", "def load(data, batch_size=16):"),
        ("samples_per_gpu = 64", "samples_per_gpu = 16"),
        ("size = int(os.environ.get('BATCH_SIZE', 64))", "size = int(os.environ.get('BATCH_SIZE', 16))"),
        ("eval_batch_size = 128\ntrain_batch_size = 64", "train_batch_size = 16"),
        (
            "a = Loader(val_data, batch_size=128)\nb = Loader(d, batch_size=64)",
            "b = Loader(d, batch_size=16)",
        ),
        (
            "a = Loader(Data('x', mode='val'), batch_size=128)\nb = Loader(d, batch_size=64)",
            "b = Loader(d, batch_size=16)",
        ),
        ("class Options:\n    batch_size: int = 8\no = Options(batch_size=64)", "o = Options(batch_size=16)"),
    ],
)
def test_the_batch_is_found_where_programs_write_it(program: str, line: str) -> None:
    remedies = explained_with(program).remedies
    assert changed(remedies[0].patch)[1:] == [f"+{line}"]
    assert "a batch of 16 in place of 64, 4 of them for each optimizer step" in remedies[0].change


def test_only_what_is_there_is_named_beside_a_step() -> None:
    made = Made(capacity=200 * MIB)
    made.malloc(166 * MIB, WEIGHTS)
    made.until_full(14 * MIB, 0)
    assert explained(made.snapshot()).cause.startswith("Weights take 166 MiB, and leave too little for one step")


def test_of_a_single_sample_no_half_is_offered() -> None:
    words = [remedy.change for remedy in explained_with("loader = DataLoader(data, batch_size=1)").remedies]
    assert words and not any("half the batch" in text or "a batch of" in text for text in words)
    words = [remedy.change for remedy in explained_with("loader = DataLoader(data, shuffle=True)").remedies]
    assert any("half the batch, two of them" in text for text in words)


def test_without_a_training_nothing_is_said_of_one() -> None:
    words = [remedy.change for remedy in explained_with("", step="def step(model, data):\n    model(data)").remedies]
    assert words and not any("optimizer step" in text or "checkpoint" in text for text in words)


def test_a_batch_is_smaller_also_where_a_step_takes_little_beside_what_the_training_keeps() -> None:
    made = Made(capacity=200 * MIB)
    made.malloc(75 * MIB, WEIGHTS)
    made.malloc(90 * MIB, BACKWARD)
    made.until_full(14 * MIB, 0)
    lines = ["batch_size = 64", *[""] * 38, *STEP.splitlines()]
    found = explained(made.snapshot(), source=lambda _file, line: lines[line - 1] if line <= len(lines) else "")
    assert found.cause.startswith("Weights and gradients take 166 MiB, and leave too little")
    assert changed(found.remedies[0].patch) == ["-batch_size = 64", "+batch_size = 16"]


def test_the_batch_is_found_in_a_module_that_the_program_imports() -> None:
    found = explained_with("from settings import values", {"/home/mia/settings/values.py": "# all\nbatch_size = 64\n"})
    assert changed(found.remedies[0].patch) == ["-batch_size = 64", "+batch_size = 16"]


def test_where_no_name_says_it_the_batch_is_the_first_size_of_what_a_step_makes() -> None:
    step = STEP.replace("model(data)", "model(torch.randn(64, 8)).view(64, -1)")
    assert changed(explained_with("", step=step).remedies[0].patch) == [
        "-    loss = model(torch.randn(64, 8)).view(64, -1).mean()",
        "+    loss = model(torch.randn(16, 8)).view(16, -1).mean()",
    ]


@pytest.mark.parametrize("program", ["num_batches = 64", "log_every_batch = 64", "batch_size = size()", "batch = True"])
def test_other_numbers_are_not_taken_for_the_batch(program: str) -> None:
    assert not any(remedy.patch for remedy in explained_with(program).remedies)


def differentiates(program: str, line: int) -> bool:
    lines = program.splitlines()
    file = SourceFile(TRAIN, lambda _file, number: lines[number - 1] if number <= len(lines) else "")
    path = file.path(line)
    assert isinstance(path[-1], ast.stmt)
    return Flow().differentiates(path)


VALIDATED_IN_THE_LOOP = """\
for data, target in loader:
    output = model(data)
    loss = criterion(output, target)
    loss.backward()
    if step % 100 == 0:
        total = 0
        for data, target in held_back:
            output = model(data)
            total += criterion(output, target)
        print(total)
"""

ROLLED_OUT = """\
for update in range(9):
    chances = []
    for time in range(9):
        chance = policy(look())
        chances.append(chance.log_prob(act()))
    loss = -torch.stack(chances).mean()
    loss.backward()
"""


def test_a_validation_within_the_loop_of_a_training_is_told_from_its_steps() -> None:
    assert differentiates(VALIDATED_IN_THE_LOOP, 2)
    assert not differentiates(VALIDATED_IN_THE_LOOP, 8)


def test_values_are_followed_through_collections_to_a_backward_pass_behind_the_loop() -> None:
    assert differentiates(ROLLED_OUT, 4)


def test_a_loss_that_is_added_up_comes_to_the_backward_pass_of_a_later_round() -> None:
    assert differentiates(
        "loss = 0\nfor x in data:\n    if last(x):\n        loss.backward()\n    loss = loss + f(x)\n", 5
    )


def test_what_a_list_of_the_caller_takes_in_is_not_said_to_come_to_nothing() -> None:
    assert differentiates("def step(x, losses):\n    loss = model(x)\n    losses.append(loss)\n", 2)


OPTION = "p.add_argument('-b', '--batch-size', type=int, default=256)"


@pytest.mark.parametrize(
    ("program", "words", "changed_words"),
    [
        (OPTION, "--batch-size 64", "--batch-size 16"),
        (OPTION, "--batch-size=64 --epochs 1", "--batch-size=16 --epochs 1"),
        (OPTION, "-b 64 -j 4", "-b 16 -j 4"),
        (OPTION, "-b64", "-b16"),
        (OPTION, "-b 32 --epochs 2 -b 64", "-b 32 --epochs 2 -b 16"),
        ("p.add_argument('-b', type=int, help='batch size for the loader')", "-b 64", "-b 16"),
        ("", "fit --model.batch_size 64", "fit --model.batch_size 16"),
        ("batch_size = 12", "--batch_size=64", "--batch_size=16"),
        ("", "data.batch_size=64", "data.batch_size=16"),
        ("", "--per_device_train_batch_size 64 --per_device_eval_batch_size 8", None),
    ],
)
def test_of_a_batch_that_the_command_gives_the_command_is_changed_and_not_a_default(
    program: str, words: str, changed_words: str | None
) -> None:
    command = ProgramCommand(("python", "train.py", *words.split()), "/home/mia")
    first = explained_with(program, command=command).remedies[0]
    after = changed_words or words.replace("batch_size 64", "batch_size 16")
    assert first.command == ("python", "train.py", *after.split())
    assert not first.patch
    assert ": a batch of 16 in place of 64, 4 of them for each optimizer step" in first.change


@pytest.mark.parametrize("words", ["-b 64", "--lr-base-size 64", "--num_batches 64", "--batch-size auto", "64"])
def test_other_words_of_a_command_are_not_taken_for_the_batch(words: str) -> None:
    command = ProgramCommand(("python", "train.py", *words.split()), "/home/mia")
    program = "p.add_argument('--lr-base-size', default=256, help='base learning rate batch size')"
    assert not any(remedy.command for remedy in explained_with(program, command=command).remedies)


def test_a_file_of_settings_that_the_command_names_counts_more_than_the_program_s_own() -> None:
    command = ProgramCommand(("python", "train.py", "config/small.py"), "/home/mia")
    others = {"/home/mia/config/small.py": "# small\nbatch_size = 64\n"}
    found = explained_with("batch_size = 12", others, command=command)
    assert changed(found.remedies[0].patch) == ["-batch_size = 64", "+batch_size = 16"]


def test_of_an_evaluation_that_was_refused_its_own_batch_is_made_smaller() -> None:
    found = explained_with("batch_size, test_batch_size = 32, 64", function="validate")
    assert changed(found.remedies[0].patch)[1:] == ["+batch_size, test_batch_size = 32, 16"]
    assert "optimizer step" not in found.remedies[0].change


def test_a_batch_is_named_also_where_state_for_every_weight_would_leave_it_no_room() -> None:
    found = explained_with("batch_size = 64\noptimizer = torch.optim.Adam(head.parameters())", weights=120 * MIB)
    assert changed(found.remedies[0].patch)[1:] == ["+batch_size = 16"]
    assert found.remedies[0].fits is None


def test_an_evaluation_without_no_grad_is_also_offered_a_smaller_batch_of_its_own() -> None:
    step = "def sample(model, data):\n    return model(data)\n"
    found = explained_with("Loader(val_data, batch_size=64)\nLoader(data, batch_size=2)", step=step)
    assert "no_grad" in found.remedies[-1].change + found.remedies[0].change
    assert any(changed(remedy.patch)[1:] == ["+Loader(val_data, batch_size=16)"] for remedy in found.remedies)


def test_what_an_optimizer_works_in_beside_its_state_is_told_from_it_and_done_without() -> None:
    made = Made(capacity=230 * MIB)
    for stack, sizes in ((WEIGHTS, (40,)), (FORWARD, (4, 4)), (BACKWARD, (40,)), (OPTIMIZER, (40, 40, 20, 40))):
        with suppress(AllocationRefused):
            for size in sizes:
                made.malloc(size * MIB, stack)
    lines = ["model = make()", "optimizer = torch.optim.Adam(model.parameters())", *[""] * 37, *STEP.splitlines()]
    found = explain_history(History(made.device(), ()), source=lambda _file, line: "".join(lines[line - 1 : line]))
    assert found.cause == (
        "The first step of Adam makes its state: 80 MiB in all (2 × 40 MiB of weights), of which 80 MiB were there "
        "when memory ran out, with 20 MiB of what it works in."
    )
    assert changed(found.remedies[0].patch)[1:] == ["+optimizer = torch.optim.Adam(model.parameters(), foreach=False)"]


def source_of(lines: dict[int, str]) -> SourceLine:
    return lambda file, line: lines.get(line, "") if file == TRAIN else ""


def test_keys_that_each_token_makes_longer_are_a_cache_also_without_its_name() -> None:
    def decoded(line: str) -> str:
        made = Made(capacity=200 * MIB)
        made.malloc(10 * MIB, WEIGHTS)
        before, tokens = made.malloc(4 * MIB), 1
        with suppress(AllocationRefused):
            while True:
                tokens += 1
                longer = made.malloc(4 * tokens * MIB)
                made.free(before)
                before = longer
        return explained(made.snapshot(), source=source_of({40: "def step(k, past):", 41: f"    {line}"})).cause

    assert decoded("k = torch.cat([past[0], k], dim=2)").startswith("The KV cache of 2")
    assert not decoded("out = torch.cat([out, found], dim=0)").startswith("The KV cache")


GENERATES = """\
def write(model, prompt):
    return model.generate(prompt, num_beams=4, {length})
"""


def generated(length: str, prompt: int, sizes: int = MIB // 2) -> Explanation:
    """An out-of-memory of text of so many tokens behind a prompt, each of which takes so many bytes of the cache."""
    lines = {40 + number: line for number, line in enumerate(GENERATES.format(length=length).splitlines(), 1)}
    cache = (("/venv/lib/python3.12/site-packages/transformers/cache_utils.py", 136, "update"), (TRAIN, 42, "write"))
    made = Made(capacity=200 * MIB)
    made.malloc(10 * MIB, WEIGHTS)
    tokens, before = prompt, made.malloc(prompt * sizes)
    with suppress(AllocationRefused):
        while True:
            tokens += 1
            longer = made.malloc(tokens * sizes)
            made.free(before)
            before = longer
    device = made.device()
    stacks = [(*cache, (TRAIN, 90, "<module>")) if stack is FORWARD else stack for stack in device.stacks]
    return explain_history(History(replace(device, stacks=stacks), ()), source=source_of(lines))


@pytest.mark.parametrize(
    ("length", "words"),
    [
        ("max_new_tokens=400", "train.py:42: at most 56 tokens: "),
        ("max_length=500", "train.py:42: at most 175 tokens, the prompt's among them: "),
    ],
)
def test_fewer_tokens_are_counted_as_the_parameter_counts_them(length: str, words: str) -> None:
    found = generated(length, prompt=120)
    assert found.cause.startswith("The KV cache of 189 tokens takes ")
    fewer = next(remedy for remedy in found.remedies if remedy.change.startswith(words))
    assert not disagreement(fewer)


@pytest.mark.parametrize(("length", "beams"), [("max_new_tokens=70", 2), ("max_new_tokens=400", 1)])
def test_as_few_beams_are_offered_as_leave_room_for_the_tokens_to_come(length: str, beams: int) -> None:
    found = next(remedy for remedy in generated(length, 120).remedies if "beams" in remedy.change)
    assert found.change == f"train.py:42: num_beams={beams} in place of 4, which searches less"
    assert changed(found.patch)[1] == f"+    return model.generate(prompt, num_beams={beams}, {length})"
    assert found.verified_by


COLLECTS = {
    37: "@torch.no_grad()",
    38: "def validate(model, data):",
    39: '    logits = torch.empty(0, 9, device="cuda")',
    40: "    for x, y in data:",
    41: "        logits = torch.cat([logits, model(x)], 0)",
    42: "        targets = torch.cat((targets, y))",
    43: "    return logits",
}


def longer(lines: dict[int, str]) -> Explanation:
    """An out-of-memory of a tensor that line 41 makes longer in every round."""
    made = Made(capacity=200 * MIB)
    made.malloc(10 * MIB, WEIGHTS)
    before, rounds = made.malloc(4 * MIB), 1
    with suppress(AllocationRefused):
        while True:
            rounds += 1
            joined = made.malloc(4 * rounds * MIB)
            made.free(before)
            before = joined
    return explained(made.snapshot(), source=source_of(lines))


def test_results_that_a_loop_joins_are_collected_in_host_memory_all_of_them() -> None:
    found = longer({**COLLECTS, 43: "    torch.save(logits.cpu(), path)"})
    assert found.cause.startswith("train.py:41 makes logits longer in every round of its loop, and has it twice ")
    assert changed(found.remedies[0].patch) == [
        f"-{COLLECTS[39]}",
        f"+{COLLECTS[39]}.cpu()",
        f"-{COLLECTS[41]}",
        "-        targets = torch.cat((targets, y))",
        "+        logits = torch.cat([logits, model(x).detach().cpu()], 0)",
        "+        targets = torch.cat((targets, y.detach().cpu()))",
    ]


def test_joined_results_with_which_the_program_may_compute_are_moved_back_behind_the_loop() -> None:
    first, second = longer(COLLECTS).remedies[:2]
    assert changed(first.patch)[-2:] == ["+    logits = logits.cuda()", "+    targets = targets.cuda()"]
    assert first.verified_by and "logits.cuda()" not in second.patch


INNER = {
    40: "INNER_STEPS = 10",
    42: "def step(loss, weights):",
    43: "    for _ in range(INNER_STEPS):",
    44: "        grads = torch.autograd.grad(loss, weights, create_graph=True)",
    45: "    meta_loss.backward()",
}


def test_the_graph_of_inner_steps_is_no_leak() -> None:
    made = Made(capacity=200 * MIB)
    made.malloc(10 * MIB, WEIGHTS)
    made.until_full(4 * MIB, 12 * MIB)
    found = explained(made.snapshot(), source=source_of(INNER))
    assert found.cause.startswith("create_graph=True at train.py:44 keeps the graph of each inner step until ")
    fewer, first_order = found.remedies
    assert changed(fewer.patch) == ["-INNER_STEPS = 10", "+INNER_STEPS = 5"] and fewer.changes_training
    assert changed(first_order.patch)[1] == "+        grads = torch.autograd.grad(loss, weights, create_graph=False)"
    without_backward = {line: text for line, text in INNER.items() if line != 45}
    assert not explained(made.snapshot(), source=source_of(without_backward)).cause


def test_one_tensor_that_is_too_large_is_blamed_by_itself() -> None:
    made = Made(capacity=200 * MIB)
    made.malloc(1 * MIB, WEIGHTS)
    with suppress(AllocationRefused):
        made.malloc(300 * MIB)
    found = explained(made.snapshot(), source=source_of({41: "distances = queries[:, None] - gallery"}))
    assert found.cause == (
        "train.py:41 asks for 300 MiB in one tensor, which is too large for the card: all others of the pass take 0 B."
    )


FOLDS = {
    9: "def build():",
    10: "    model = Net().cuda()",
    11: "    return model",
    88: "for fold in range(9):",
    90: "    model = build()",
    91: "    train(model)",
    92: "    models.append(model)",
    93: "    print(fold)",
}


def folds(lines: dict[int, str], keeps: bool) -> Explanation:
    made = Made(capacity=200 * MIB)
    with suppress(AllocationRefused):
        while True:
            model = made.malloc(30 * MIB, WEIGHTS)
            made.step(8 * MIB)
            if not keeps:
                made.free(model)
                made.malloc(20 * MIB, KEPT)
    return explained(made.snapshot(), source=source_of(lines))


def test_models_of_earlier_folds_are_moved_to_host_memory_at_the_end_of_each() -> None:
    found = folds(FOLDS, keeps=True)
    assert found.cause.startswith("6 models from train.py:10 are on the GPU at a time: train.py:92 ")
    assert changed(found.remedies[0].patch) == ["+    model.cpu()"]
    assert found.remedies[0].verified_by == "replay"


KEPT_ERROR = {
    9: "def build():",
    10: "    model = Net().cuda()",
    11: "    train(model)",
    88: "for size in sizes:",
    89: "    try:",
    90: "        build()",
    91: "    except ValueError as error:",
    92: "        last_error = error",
}


@pytest.mark.parametrize("statement", ["last_error = error", "errors.append(error)"])
def test_models_that_the_traceback_of_a_kept_exception_holds_are_told_so_with_what_to_keep_instead(
    statement: str,
) -> None:
    found = folds({**KEPT_ERROR, 92: f"        {statement}"}, keeps=True)
    assert f"train.py:92 ({statement}) keeps 150 MiB of earlier ones, as the traceback of an exception" in found.cause
    kept = statement.replace("error)", "str(error))").replace("= error", "= str(error)")
    assert changed(found.remedies[0].patch) == [f"-        {statement}", f"+        {kept}"]
    assert found.remedies[0].verified_by == "replay" and "str(error) in place of error" in found.remedies[0].change


@pytest.mark.parametrize("statement", ["last_error = str(error)", "print(error)", "last_error = other"])
def test_an_exception_that_is_not_kept_holds_no_model(statement: str) -> None:
    assert "traceback" not in folds({**KEPT_ERROR, 92: f"        {statement}"}, keeps=True).cause


def test_models_that_nothing_in_the_source_keeps_are_told_without_an_edit() -> None:
    found = folds({number: line for number, line in FOLDS.items() if number != 92}, keeps=True)
    assert found.cause.startswith("6 models from train.py:10 are on the GPU at a time, 150 MiB for the earlier ones")
    assert not found.remedies[0].patch


def test_one_model_at_a_time_is_not_several() -> None:
    assert "models from" not in folds(FOLDS, keeps=False).cause


@pytest.mark.parametrize(("line", "saved"), [("", 60), ("model.to(torch.bfloat16)", 39), ("autocast(dtype=half)", 60)])
def test_a_state_of_8_bits_saves_what_its_values_and_scales_leave(line: str, saved: int) -> None:
    made = Made(capacity=159 * MIB)
    made.malloc(40 * MIB, WEIGHTS)
    made.malloc(40 * MIB, BACKWARD)
    with suppress(AllocationRefused):
        for size in (40, 20, 20):
            made.malloc(size * MIB, OPTIMIZER)
    lines = {10: "model = Net().cuda()", 11: line, 12: "optimizer = AdamW(model.parameters())"}
    remedies = [remedy.change for remedy in explained(made.snapshot(), source=source_of(lines)).remedies]
    assert f"a state of 8 bits (bitsandbytes.optim.AdamW8bit, torchao.optim): {saved} MiB less" in remedies
    assert any("the state in host memory" in change and "80 MiB less" in change for change in remedies)
    assert any("over 2 GPUs" in change and "80 MiB less" in change for change in remedies)


@pytest.mark.parametrize("name", sorted(name for name in STATES if hasattr(torch.optim, name)))
def test_an_optimizer_of_torch_keeps_as_many_values_as_are_counted(name: str) -> None:
    weight = torch.nn.Parameter(torch.ones(1000))
    optimizer = getattr(torch.optim, name)([weight], lr=0.1, **({"momentum": 0.9} if name == "SGD" else {}))
    weight.grad = torch.ones(1000)
    optimizer.step()
    kept = [value for value in optimizer.state[weight].values() if torch.is_tensor(value) and value.numel() == 1000]
    assert len(kept) == STATES[name]


TEACHES = """\
def step(data):
    wanted = teacher(data)
    loss = distance(student(data), wanted)
    loss.backward()
"""


def test_the_pass_of_a_network_that_no_optimizer_has_is_put_under_no_grad() -> None:
    program = "import torch\noptimizer = torch.optim.Adam(student.parameters())"
    found = explained_with(program, step=TEACHES)
    assert found.cause.startswith("The forward pass of teacher at train.py:41 keeps its graph, ")
    assert "torch.no_grad() is missing" in found.cause
    assert changed(found.remedies[-1].patch) == [
        "-    wanted = teacher(data)",
        "+    with torch.no_grad():",
        "+        wanted = teacher(data)",
    ]
    # what it gives may come to what is trained by other names
    longer = TEACHES.replace("    loss = ", "    soft = softmax(wanted.logits / 4)\n    loss = ").replace(
        ", wanted)", ", soft)"
    )
    assert "torch.no_grad() is missing" in explained_with(program, step=longer).cause
    # in one statement with what is trained the pass comes before it
    step = "def step(data):\n    loss = distance(student(data), teacher(data))\n    loss.backward()\n"
    assert changed(explained_with(program, step=step).remedies[-1].patch) == [
        "-    loss = distance(student(data), teacher(data))",
        "+    with torch.no_grad():",
        "+        of_teacher = teacher(data)",
        "+    loss = distance(student(data), of_teacher)",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "optimizer = torch.optim.Adam([*student.parameters(), *teacher.parameters()])",
        "optimizer = Lion(both.parameters())\nboth = Both(student, teacher)\nteacher = both.teacher",
        "optimizer = torch.optim.Adam(student.parameters())\ndata = student(noise)",
        "optimizer = torch.optim.Adam(student.parameters())\ndata.requires_grad_()",
        "optimizer = torch.optim.Adam(student.parameters())\nwith_data = step(student(noise))",
        "print(len(teacher.layers))",
    ],
)
def test_a_pass_through_which_anything_is_trained_keeps_its_graph(line: str) -> None:
    assert "no_grad" not in explained_with(f"import torch\n{line}", step=TEACHES).cause


def test_random_numbers_that_a_trained_network_is_given_are_no_network() -> None:
    program = "import torch\noptimizer = torch.optim.Adam(student.parameters())"
    step = "def step(data):\n    loss = distance(student(torch.randn(8, 8)), torch.zeros(8))\n    loss.backward()\n"
    assert "no_grad" not in explained_with(program, step=step).cause


AHEAD = """\
class Prefetcher:
    def __init__(self, loader, {parameter}):
        self.queue = {queue}
    def fill(self):
        self.queue.append(next(self.loader).cuda())
"""


@pytest.mark.parametrize(
    ("parameter", "queue", "call", "edit"),
    [
        ("ahead=40", "deque(maxlen=ahead)", "Prefetcher(loader)", "    def __init__(self, loader, ahead={}):"),
        ("ahead=2", "Queue(ahead)", "Prefetcher(loader, 40)", "Prefetcher(loader, {})"),
        ("depth", "Queue(maxsize=depth)", "Prefetcher(loader, depth=40)", "Prefetcher(loader, depth={})"),
    ],
)
def test_fewer_batches_are_copied_ahead_where_their_number_stands(
    parameter: str, queue: str, call: str, edit: str
) -> None:
    made = Made(capacity=200 * MIB)
    made.malloc(10 * MIB, WEIGHTS)
    with suppress(AllocationRefused):
        while True:
            made.malloc(8 * MIB, KEPT)
    text = AHEAD.format(parameter=parameter, queue=queue)
    lines = {39 + number: line for number, line in enumerate([text.splitlines()[0], *text.splitlines()[1:]], 1)}
    lines |= {60: call}
    found = explain_history(History(made.device(), ()), source=source_of(lines))
    assert found.cause == "18 batches that train.py:44 copies to the GPU ahead of their steps take 144 MiB."
    assert changed(found.remedies[0].patch)[1:] == [f"+{edit.format(9)}"]
    assert found.remedies[0].change.endswith("at most 9 batches ahead, not 40: 72 MiB less")


def grown(
    sizes: Iterable[int],
    *,
    capacity: int = 200 * MIB,
    keeps: int = 0,
    shapes: Callable[[int, int], list[SeenTensor]] = lambda _time_us, _size: [],
    loop: Sequence[str] = (),
) -> Explanation:
    """Steps with activations of these sizes, until one of them is refused memory.

    Args:
        sizes: bytes of each of a step's activations.
        capacity: bytes of the card.
        keeps: bytes that each step keeps.
        shapes: what variables hold after a step with activations of a size, at a time.
        loop: the program's lines from 89 on.
    """
    made = Made(capacity=capacity)
    made.malloc(30 * MIB, WEIGHTS)
    seen: list[SeenTensor] = []
    size = 0
    with suppress(AllocationRefused):
        for size in sizes:
            made.step(size, keeps)
            seen += shapes(made.now_us - 1, size)
    seen += shapes(made.now_us, size)
    step = ["batch_size = 64", *[""] * 38, *STEP.splitlines()]
    lines = [*step, *[""] * (88 - len(step)), *loop]
    return explained(
        made.snapshot(), source=lambda _file, line: lines[line - 1] if line <= len(lines) else "", shapes=seen
    )


def test_inputs_that_grow_from_step_to_step_are_the_cause_and_their_limit_the_first_remedy() -> None:
    found = grown(2 * MIB * step for step in range(2, 100))
    assert found.verdict != "leak"
    assert found.cause == (
        f"The inputs grow: train.py:41 asks for 4 MiB in step 1 and {2 * (found.step + 1)} MiB in step {found.step}, "
        "and every step needs more than the one before."
    )
    first, *others = found.remedies
    assert first.change.startswith("train.py:41: no inputs larger than those of step ")
    assert not first.puts_off and first.verified_by == "replay"
    batch = next(remedy for remedy in others if remedy.patch)
    assert batch.puts_off == "lasts until the inputs have grown as much again"


def sequences(time_us: int, size: int) -> list[SeenTensor]:
    """Of 8 sequences of numbers with 8 bytes each, their targets, and a mask of one byte."""
    shape = (8, size // 64)
    return [
        SeenTensor(time_us, TRAIN, "<module>", "x", shape, size, size),
        SeenTensor(time_us, TRAIN, "<module>", "y", shape, size, size),
        SeenTensor(time_us, TRAIN, "<module>", "mask", shape, size // 8, size // 8),
    ]


LOOP = ("for x, y in loader:", "    step(model, x)", "    mask = x > 0")


def test_growing_inputs_that_a_variable_holds_are_told_by_their_shapes_and_truncated_where_a_loop_gets_them() -> None:
    found = grown((2 * MIB * step for step in range(2, 100)), shapes=sequences, loop=LOOP)
    last = 2 * MIB * (found.step + 1) // 64
    assert found.cause == (
        f"The inputs grow: x at train.py:41 is [8, {4 * MIB // 64}] in step 1 and [8, {last}] in step {found.step}, "
        "and every step needs more than the one before."
    )
    truncation = found.remedies[0]
    words = re.fullmatch(r"train\.py:89: truncate x to \[8, (\d+)\], as in step (\d+)", truncation.change)
    assert words is not None and truncation.changes_training
    length, step = map(int, words.groups())
    assert length == 2 * MIB * (step + 1) // 64
    # Of the two steps behind it one is whole, so that also its backward pass was tried.
    assert step == found.step - 2 and truncation.verified_by == "replay"
    assert changed(truncation.patch) == [f"+    x, y = x[:, :{length}].contiguous(), y[:, :{length}].contiguous()"]
    assert truncation.predicted_peak_bytes is not None and truncation.predicted_peak_bytes <= 200 * MIB


@pytest.mark.parametrize(
    ("loop", "edit"),
    [
        (("while True:", "    x, y = batch(step)", "    mask = x > 0"), "+    x, y = x[:, :{0}].contiguous(), y["),
        (("for x, y in loader:", "    x, y = x.cuda(), y.cuda()", "    mask = x > 0"), "+    x, y = x[:, :{0}]."),
        # The mask would keep its length.
        (("for x, y in loader:", "    step(model, x)", "    mask = torch.ones(8, length)"), ""),
        (("for number in range(9):", "    step(model, batch())"), ""),
    ],
)
def test_growing_inputs_are_truncated_where_they_are_made_unless_something_else_keeps_its_length(
    loop: Sequence[str], edit: str
) -> None:
    truncation = grown((2 * MIB * step for step in range(2, 100)), shapes=sequences, loop=loop).remedies[0]
    words = re.search(r"truncate x to \[8, (\d+)\]", truncation.change)
    assert words is not None
    assert bool(truncation.patch) == bool(edit) and edit.format(words[1]) in truncation.patch


def test_growing_tensors_of_a_dictionary_are_truncated_by_their_keys() -> None:
    def batch(time_us: int, size: int) -> list[SeenTensor]:
        return [
            SeenTensor(time_us, TRAIN, "<module>", "batch['ids']", (8, size // 64), size, size),
            SeenTensor(time_us, TRAIN, "<module>", "batch['kinds']", (8,), 64, 64),
        ]

    loop = ("for batch in loader:", "    step(model, **batch)")
    patch = grown((2 * MIB * step for step in range(2, 100)), shapes=batch, loop=loop).remedies[0].patch
    assert "+    batch['ids'] = batch['ids'][:, :" in patch and "kinds" not in patch


@pytest.mark.parametrize(
    ("shape_of", "change"),
    [
        (lambda size: (16, math.isqrt(size // 16), math.isqrt(size // 16)), r"resize x to \[16, (\d+), \1\] before"),
        (lambda size: (size // 64, 8), r"split x into parts of \[\d+, 8\]"),
        (lambda size: (8, size // MIB, size // 64), "resize x before the model works on it, as in step"),
    ],
    ids=["images", "samples", "both"],
)
def test_what_grows_in_other_dimensions_is_told_what_to_do_without_an_edit(
    shape_of: Callable[[int], tuple[int, ...]], change: str
) -> None:
    def inputs(time_us: int, size: int) -> list[SeenTensor]:
        return [SeenTensor(time_us, TRAIN, "<module>", "x", shape_of(size), size, size)]

    # Of squares, whose sides are whole numbers.
    first = grown((MIB // 4 * step**2 for step in range(2, 60)), shapes=inputs, loop=LOOP).remedies[0]
    assert re.search(change, first.change) and not first.patch


def test_a_variable_with_other_bytes_than_the_requests_is_not_taken_for_the_inputs() -> None:
    def others(time_us: int, size: int) -> list[SeenTensor]:
        return [SeenTensor(time_us, TRAIN, "<module>", "x", (8, size // 64), size + 8, size + 8)]

    found = grown((2 * MIB * step for step in range(2, 100)), shapes=others, loop=LOOP)
    assert "asks for 4 MiB in step 1" in found.cause and "no inputs larger than" in found.remedies[0].change


@pytest.mark.parametrize(
    "sizes",
    [
        [20 * MIB] * 6 + [90 * MIB],
        [30 * MIB, 8 * MIB, 24 * MIB, 12 * MIB, 28 * MIB, 10 * MIB, 26 * MIB, 90 * MIB],
        [8 * MIB, 16 * MIB, 90 * MIB],
    ],
    ids=["constant", "of any length", "too few"],
)
def test_inputs_of_other_sizes_do_not_grow(sizes: list[int]) -> None:
    cause = grown(sizes).cause
    assert cause and "inputs grow" not in cause


def test_what_only_makes_room_for_more_steps_of_a_leak_says_for_how_many_and_comes_after_its_end() -> None:
    found = grown([64 * MIB] * 30, capacity=300 * MIB, keeps=2 * MIB)
    assert found.growing and found.verdict != "leak"
    release, *others = found.remedies
    assert "train.py:44" in release.change and not release.puts_off
    batch = next(remedy for remedy in others if remedy.patch)
    assert batch.predicted_peak_bytes is not None
    steps = (300 * MIB - batch.predicted_peak_bytes) // round(found.growing[0].bytes_per_step)
    assert batch.puts_off == f"lasts at least {steps} steps more, then it is full again"
