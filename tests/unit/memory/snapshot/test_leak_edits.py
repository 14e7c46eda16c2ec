"""What keeps a value of every step is found in a program's source, with what to write instead, and nothing else is."""

from __future__ import annotations

import textwrap

import pytest

from gpudash.memory.snapshot.leak_edits import Keeper, edit_of_statement, keeper_of, keepers
from gpudash.memory.snapshot.source_edits import EMPTY_LINES, SourceFile
from gpudash.telemetry.explanation import Growth

GROWS = "# grows"


def found(program: str) -> list[Keeper]:
    """What is found in a program, whose lines that make what stays are marked."""
    lines = textwrap.dedent(program).strip("\n").splitlines()
    makers = [("train.py", number) for number, line in enumerate(lines, 1) if GROWS in line]
    assert makers
    return keepers(makers, lambda _file, line: lines[line - 1] if line <= len(lines) else "")


LOOP = """
losses, total, history, logs = [], 0.0, {{}}, []
for step, (x, y) in enumerate(loader):
    out = model(x)
    loss = criterion(out, y)  # grows
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    {}
"""

READ_AS_TENSORS = {
    "stacked": (
        LOOP.format("losses.append(loss)") + "mean = torch.stack(losses).mean()\n",
        "losses.append(loss.detach())",
    ),
    "last one": (
        LOOP.format("losses.append(loss); print(losses[-1].item())"),
        "losses.append(loss.detach())",
    ),
    "each": (
        LOOP.format("losses.append(loss)") + "print([value.item() for value in losses])\n",
        "losses.append(loss.detach())",
    ),
    "by name": (
        LOOP.format("history.setdefault('loss', []).append(loss)") + "torch.cat(history['loss'])\n",
        "history.setdefault('loss', []).append(loss.detach())",
    ),
    "sum": (LOOP.format("total += loss") + "print((total / 7).item())\n", "total += loss.detach()"),
    "sum of a list": (
        LOOP.format("losses.append(loss)") + "print((sum(losses) / 7).item())\n",
        "losses.append(loss.detach())",
    ),
    "numbers do": (
        LOOP.format("losses.append(loss)") + "print(sum(losses) / 7, torch.tensor(losses), losses[-1].real)\n",
        "losses.append(loss.item())",
    ),
}

LEAKING = {
    "append": (LOOP.format("losses.append(loss)"), "losses.append(loss.item())"),
    "sum": (LOOP.format("total += loss"), "total += loss.item()"),
    "sum written out": (LOOP.format("total = total + loss"), "total = total + loss.item()"),
    "weighted": (LOOP.format("total += loss * len(x)  # grows"), "total += (loss * len(x)).item()"),
    "list sum": (LOOP.format("losses += [loss]"), "losses += [loss.item()]"),
    "new list": (LOOP.format("losses = losses + [loss]"), "losses = losses + [loss.item()]"),
    "pair": (LOOP.format("losses.append((step, loss))"), "losses.append((step, loss.item()))"),
    "dictionary": (
        LOOP.format("logs.append({'loss': loss, 'step': step})"),
        "logs.append({'loss': loss.item(), 'step': step})",
    ),
    "by step": (LOOP.format("history[step] = loss"), "history[step] = loss.item()"),
    "by name": (
        LOOP.format("history.setdefault('loss', []).append(loss)"),
        "history.setdefault('loss', []).append(loss.item())",
    ),
    "attribute": (LOOP.format("self.losses.append(loss)"), "self.losses.append(loss.item())"),
    "detached": (LOOP.format("losses.append(loss.detach())"), "losses.append(loss.item())"),
    "condition": (LOOP.format("if step % 10 == 0: losses.append(loss)"), "losses.append(loss.item())"),
    "several lines": (
        LOOP.format("losses.append(\n        loss,\n    )"),
        "losses.append(loss.item())",
    ),
    "renamed": (LOOP.format("value = loss\n    losses.append(value)"), "losses.append(value.item())"),
    "attribute made": (
        """
        for x in loader:
            self.loss = criterion(model(x))  # grows
            self.loss.backward()
            self.losses.append(self.loss)
        """,
        "self.losses.append(self.loss.item())",
    ),
    "in a function": (
        """
        def train(loader):
            for x in loader:
                loss = model(x)  # grows
                loss.backward()
                losses.append(loss)
        """,
        "losses.append(loss.item())",
    ),
    "queue without end": (
        """
        from collections import deque
        recent = deque()
        for x in loader:
            loss = model(x)  # grows
            loss.backward()
            recent.append(loss)
        """,
        "recent.append(loss.item())",
    ),
}

TENSORS = {
    "outputs of an evaluation": (
        """
        for x in loader:
            outputs.append(model(x))  # grows
        """,
        "outputs.append(model(x).cpu()) under torch.no_grad()",
    ),
    "outputs without a graph": (
        """
        with torch.no_grad():
            for x in loader:
                out = model(x)  # grows
                outputs.append(out)
        """,
        "outputs.append(out.detach().cpu())",
    ),
    "activations of a hook": (
        """
        def hook(module, inputs, output):
            kept = output * 2  # grows
            activations[len(activations)] = kept
        """,
        "activations[len(activations)] = kept.detach().cpu()",
    ),
    "memory of a step": (
        """
        for step, x in enumerate(loader):
            out = model(x)  # grows
            out.sum().backward()
            history[step] = out
        """,
        "history[step] = out.detach().cpu()",
    ),
    "running sum of tensors": (
        """
        for x in loader:
            out = model(x)  # grows
            out.sum().backward()
            table += out
        """,
        "table += out.detach()",
    ),
}


@pytest.mark.parametrize(("program", "edit"), READ_AS_TENSORS.values(), ids=READ_AS_TENSORS)
def test_a_number_that_is_read_as_a_tensor_afterwards_is_kept_as_one(program: str, edit: str) -> None:
    assert found(program)[0].edit(is_number=True) == edit


@pytest.mark.parametrize(("program", "instead"), LEAKING.values(), ids=LEAKING)
def test_a_number_that_is_kept_is_kept_as_a_number(program: str, instead: str) -> None:
    assert [keeper.edit(is_number=True) for keeper in found(program)] == [instead]


@pytest.mark.parametrize(("program", "instead"), TENSORS.values(), ids=TENSORS)
def test_a_tensor_that_is_kept_is_kept_without_its_graph_and_elsewhere(program: str, instead: str) -> None:
    assert [keeper.edit(is_number=False) for keeper in found(program)] == [instead]


CARRIED = {
    "hidden": ("hidden = model(x, hidden)", "hidden = hidden.detach() where a step begins"),
    "pair": ("out, hidden = model(x, hidden)", "hidden = hidden.detach() where a step begins"),
    "moving average": ("mean = 0.9 * mean + 0.1 * model(x)", "mean = mean.detach() where a step begins"),
}


@pytest.mark.parametrize(("line", "instead"), CARRIED.values(), ids=CARRIED)
def test_what_passes_from_step_to_step_is_cut_from_its_past(line: str, instead: str) -> None:
    program = f"for x in loader:\n    {line}  # grows\n    criterion(x).backward(retain_graph=True)\n"
    assert [keeper.edit(is_number=False) for keeper in found(program)] == [instead]


HOOK = """
activations, counter = {{}}, 0

def remember(name):
    def hook(module, inputs, output):
        {}
    return hook

for name, block in net.blocks.named_children():
    block.register_forward_hook(remember(name))

while counter < 500:
    loss = criterion(net(x), y)  # grows
    loss.backward()
    counter += 1
    {}
"""

NEW_KEY = "activations[(counter, name)] = output"


@pytest.mark.parametrize(
    ("statement", "instead"),
    [
        (NEW_KEY, "activations[counter, name] = output.detach().cpu()"),
        ("seen.append(output)", "seen.append(output.detach().cpu())"),
        ("seen.append(inputs[0])", "seen.append(inputs[0].detach().cpu())"),
    ],
)
def test_a_hook_that_a_function_makes_is_named_with_what_it_keeps_of_each_step(statement: str, instead: str) -> None:
    kept = found(HOOK.format(statement, ""))
    assert [keeper.edit(is_number=False) for keeper in kept] == [instead]
    assert all(keeper.in_hook and keeper.place == ("train.py", 5) for keeper in kept)


@pytest.mark.parametrize(
    ("statement", "after"),
    [
        ("activations[name] = output", ""),
        ("activations[module] = output", ""),
        ("activations[(counter, name)] = output.detach().cpu()", ""),
        (NEW_KEY, "activations.clear()"),
        (NEW_KEY, "activations = {}"),
        (NEW_KEY, "del activations[(counter - 1, name)]"),
    ],
)
def test_a_hook_that_replaces_what_it_stored_or_is_emptied_keeps_nothing(statement: str, after: str) -> None:
    assert found(HOOK.format(statement, after)) == []


def test_a_hook_that_is_a_lambda_is_named_with_what_it_keeps_and_its_line_is_not_cut() -> None:
    program = """
    seen = []
    model[1].register_forward_hook(lambda module, args, output: seen.append(output.detach()))
    for x in loader:
        loss = model(x).mean()  # grows
        loss.backward()
    """
    (kept,) = found(program)
    assert kept.in_hook and kept.place == ("train.py", 2)
    assert kept.edit(is_number=False) == "seen.append(output.detach().cpu())"
    lines = textwrap.dedent(program).strip("\n").splitlines()
    file = SourceFile("train.py", lambda _file, line: lines[line - 1] if line <= len(lines) else "")
    assert kept.changes(file, is_number=False) is None


def test_what_keeps_the_result_of_a_line_is_named_by_its_place() -> None:
    lines = ["for x in loader:", "    loss = model(x)", "    total += loss", "    losses.append(model(x))"]

    def source(_file: str, line: int) -> str:
        return lines[line - 1] if line <= len(lines) else ""

    def keeper(line: int) -> str:
        growth = Growth("/mia/train.py", line, "<module>", "", 8.0, 80, 10, 1)
        return keeper_of(growth, [(("/mia/train.py", line, "<module>"),)], source)

    assert keeper(2) == "train.py:3 (total += loss)"
    assert keeper(4) == ""  # the line itself
    lines[:] = ["for x in loader:", "    try:", "        step(model(x))", "    except RuntimeError as error:"]
    assert keeper(3) == ""
    lines.append("        errors.append(error)")
    assert keeper(3) == "train.py:5 (errors.append(error))"


HARMLESS = {
    "item": LOOP.format("losses.append(loss.item())"),
    "float": LOOP.format("total += float(loss)"),
    "rounded": LOOP.format("losses.append(round(loss.item(), 3))"),
    "host": LOOP.format("losses.append(loss.detach().cpu())"),
    "array": LOOP.format("losses.append(loss.detach().cpu().numpy())"),
    "text": LOOP.format("logs.append(f'{step}: {loss}')"),
    "printed": LOOP.format("print(step, loss)"),
    "count": LOOP.format("total += 1"),
    "size": LOOP.format("total += out.shape[0]"),
    "weighted number": LOOP.format("total += loss.item() * len(x)"),
    "turned into a number": LOOP.format("loss = loss.item()\n    losses.append(loss)"),
    "last value": LOOP.format("history['loss'] = loss"),
    "ring": LOOP.format("history[step % 10] = loss"),
    "attribute": LOOP.format("self.last = loss"),
    "something else": LOOP.format("losses.append(step)"),
    "of the same step": LOOP.format("parts = []\n    parts.append(loss)"),
    "emptied": LOOP.format("losses.append(loss)\n    losses.clear()"),
    "taken out": LOOP.format("losses.append(loss)\n    if len(losses) > 5: losses.pop(0)"),
    "deleted": LOOP.format("history[step] = loss\n    del history[step]"),
    "bounded queue": "recent = deque(maxlen=10)\n" + LOOP.format("recent.append(loss)"),
    "bounded queue by place": "recent = deque([], 10)\n" + LOOP.format("recent.append(loss)"),
    "detached hidden": """
        for x in loader:
            hidden = hidden.detach()
            out, hidden = model(x, hidden)  # grows
            out.sum().backward()
        """,
    "repackaged hidden": """
        for x in loader:
            hidden = repackage_hidden(hidden)
            out, hidden = model(x, hidden)  # grows
            out.sum().backward()
        """,
    "layers of a model": """
        def forward(self, x):
            for layer in self.layers:
                x = layer(x)  # grows
            return x
        """,
    "layers in the loop": """
        for x in loader:
            h = x
            for layer in layers:
                h = layer(h)  # grows
            h.sum().backward()
        """,
    "hidden without a graph": """
        with torch.no_grad():
            for x in loader:
                hidden = model(x, hidden)  # grows
        """,
    "no Python": "for each x {\n  loss = f(x)  # grows\n  kept.append(loss)\n}",
}


LOGGER = """
class Trainer:
    def log(self, **metrics):
        for name, value in metrics.items():
            self.history[name].append(value)
    def mean(self, values):
        found = []
        found.append(values)
        return found
    def train(self, x, y):
        out = self.model(x)  # grows
        loss = criterion(out, y)
        loss.backward()
        {}
    def fit(self):
        for x in loader:
            y = target(x)  # grows
            self.train(x, y)
"""


def test_what_a_method_takes_into_a_collection_is_kept_by_the_call_that_hands_it_over() -> None:
    both = found(LOGGER.replace("{}", "self.log(loss=loss.item(), out=out, y=y)"))
    assert [(keeper.name, keeper.place[1]) for keeper in both] == [("out", 13), ("y", 13)]
    written = edit_of_statement([(keeper, False) for keeper in both])
    assert written == "self.log(loss=loss.item(), out=out.detach().cpu(), y=y.detach().cpu())"
    assert both[0].rewrite(is_number=False) is not None


@pytest.mark.parametrize("line", ["self.log(out=out.mean().item())", "self.mean(out)", "print(out)"])
def test_a_call_that_hands_over_a_number_or_whose_function_forgets_it_keeps_nothing(line: str) -> None:
    assert found(LOGGER.replace("{}", line)) == []


def test_a_callback_keeps_what_it_has_as_a_default() -> None:
    (keeper,) = found(
        """
        def at_end(callback):
            callbacks.append(callback)
        for x in loader:
            out = model(x)  # grows
            out.mean().backward()
            at_end(lambda out=out: print(out))
        """
    )
    assert keeper.edit(is_number=False) == "at_end(lambda out=out.detach().cpu(): print(out))"


@pytest.mark.parametrize("program", HARMLESS.values(), ids=HARMLESS)
def test_what_keeps_nothing_is_not_blamed(program: str) -> None:
    assert found(program) == []


@pytest.mark.parametrize("line", ["total = total + criterion(model(x), y)", "total += criterion(model(x), y)"])
def test_a_sum_that_is_differentiated_itself_is_cut_from_its_past_and_not_from_what_is_new(line: str) -> None:
    (keeper,) = found(f"""
        for x, y in loader:
            {line}  # grows
            total.backward(retain_graph=True)
            optimizer.step()
    """)
    assert keeper.edit(is_number=True) == "total = total.detach() where a step begins"


def test_there_are_twenty_of_either_at_least() -> None:
    assert len(LEAKING) + len(TENSORS) + len(CARRIED) >= 20 and len(HARMLESS) >= 20


def test_a_file_that_cannot_be_read_shows_nothing() -> None:
    asked: list[int] = []
    assert keepers([("/gone/train.py", 20)], lambda _file, line: asked.append(line) or "") == []
    assert len(asked) <= EMPTY_LINES + 1


def test_a_line_that_keeps_something_is_told_with_its_own_text_around_it() -> None:
    (keeper,) = found(LOOP.format("losses.append(loss)"))
    assert (keeper.place, keeper.statement) == (("train.py", 8), "losses.append(loss)")
    assert not keeper.detached and not keeper.without_backward


def test_lines_in_a_function_that_a_loop_calls_are_followed_to_what_keeps_their_result() -> None:
    program = """
    def step(x):
        out = model(x)  # grows
        return out.sum()

    for x in loader:
        loss = step(x)  # grows
        loss.backward()
        losses.append(loss)
    """
    assert [keeper.edit(is_number=True) for keeper in found(program)] == ["losses.append(loss.item())"]
