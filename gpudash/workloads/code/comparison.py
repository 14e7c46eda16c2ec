"""A comparison as a plain PyTorch program: both devices in alternation, and the ratio of their times."""

from __future__ import annotations

from gpudash.specs import MatmulSpec, PipelineSpec, Spec, TrainingSpec
from gpudash.specs.comparison import ComparisonSpec
from gpudash.specs.matmul import threads_for
from gpudash.workloads.code.training import training_code

REPETITIONS = 10
"""Foursomes of the program; the run goes on until its interval is narrow."""

STEPS = 20
"""Steps of a repetition; the first two do not count."""

CHARACTERS = 90
"""Different characters of the made-up text: a step takes as long on any text of as many."""


def comparison_code(spec: ComparisonSpec, _device: str) -> list[str]:
    """The lines of the program: it prints the seconds per step of both devices, and the ratio.

    Its data are made up, in the shapes of the run's: the time of a step does not depend on their values.

    Raises:
        ValueError: for a workload that is not built in.
    """
    chosen = spec.chosen
    if isinstance(chosen, TrainingSpec):
        made = _training(chosen)
    elif isinstance(chosen, MatmulSpec):
        made = _matmul(chosen)
    elif isinstance(chosen, PipelineSpec):
        made = _pipeline(chosen)
    else:
        raise ValueError(
            f"the workload {chosen.name} cannot be shown as a program; read {chosen.run.partition(':')[0]}"
        )
    return [
        "import math",
        "import statistics",
        "import time",
        "import torch",
        *made,
        *_timing(spec, chosen),
    ]


def _timing(spec: ComparisonSpec, chosen: Spec) -> list[str]:
    first, second = spec.pair
    return [
        "def repetition(step):",
        "    times = []",
        f"    for index in range({STEPS}):",
        "        began = time.perf_counter()",
        "        step(index)",
        "        times.append(time.perf_counter() - began)",
        "    return statistics.fmean(times[2:])",
        f"torch.set_num_threads({_threads(chosen)})",
        f'sides, seconds = [build("{first}"), build("{second}")], ([], [])',
        f"for number in [0, 1, 1, 0] * {REPETITIONS + 1}:",
        "    seconds[number].append(repetition(sides[number]))",
        "a, b = (times[2:] for times in seconds)  # the first four were the warm-up",
        f'print("{first}", statistics.median(a), "s a step; {second}", statistics.median(b), "s a step")',
        'print("ratio", math.exp(statistics.median(math.log(one / other) for one, other in zip(a, b))))',
    ]


def _threads(spec: Spec) -> int:
    """CPU threads of the run."""
    return spec.threads or (threads_for(spec.size) if isinstance(spec, MatmulSpec) else 1)


def _training(spec: TrainingSpec) -> list[str]:
    """The model and the step of the run's own program, for any device."""
    spec = TrainingSpec.model_validate({**spec.model_dump(exclude_unset=True), "steps": STEPS, "epochs": 1})
    program = [line for line in training_code(spec, "cpu") if line]
    model_at = _find(program, "model = ")
    begin = next(number for number, line in enumerate(program) if line.startswith(("class ", "layers = ")))
    layers_at = next((number for number, line in enumerate(program) if line.startswith("layers = ")), model_at)
    classes = program[begin:layers_at]
    built = [
        *program[layers_at : model_at + 1],
        *(["model.eval()"] if spec.mode == "inference" else _optimizers(program)),
    ]
    resident = ["there = [[tensor.to(device) for tensor in pair] for pair in batches]"]
    taken = "there[index]" if spec.batches == "resident" else "batches[index]"
    return [
        "from torch import nn",
        "from torch.nn import functional",
        *[line for line in program if line.startswith("from torch.utils")],
        *_data(spec),
        *classes,
        "def build(device):",
        f"    torch.manual_seed({spec.seed})",
        "    device = torch.device(device)",
        *_indented(built),
        *_indented(resident if spec.batches == "resident" else []),
        *(["    kept = []"] if spec.keep_intermediates else []),
        "    def step(index):",
        *_indented(_step(spec, program, taken), 2),
        "    return step",
    ]


def _step(spec: TrainingSpec, program: list[str], taken: str) -> list[str]:
    """The lines of one step of the run's own program, its batch taken from what has been made."""
    if spec.mode == "inference":
        begin, end = _find(program, "began = "), _find(program, "seconds.append")
        return ["with torch.no_grad():", f"    inputs = {taken}[0]", *_indented(_dedented(program[begin + 1 : end]))]
    lines = _dedented(program[_find(program, "step += 1") + 1 :])
    whole = "resident[index]" if spec.batches == "resident" else "batch(index)"
    lines = [line.replace(whole, taken) for line in lines if not line.startswith("print(")]
    return [*lines, "return loss.item()  # waits for the device"]


def _optimizers(program: list[str]) -> list[str]:
    return [line for line in program if line.startswith(("optimizer = ", "scaler = "))]


def _data(spec: TrainingSpec) -> list[str]:
    rows = spec.step_batch
    if spec.model == "transformer":
        made = f"torch.randint({CHARACTERS}, ({rows}, {spec.sequence + 1}))"
        return [
            f"characters = range({CHARACTERS})",
            f"text = [{made} for _ in range({STEPS})]",
            "batches = [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in text]",
        ]
    shape = f"{rows}, 32" if spec.model == "mlp" else f"{rows}, 3, 16, 16"
    return [f"batches = [(torch.randn({shape}), torch.randint(10, ({rows},))) for _ in range({STEPS})]"]


def _matmul(spec: MatmulSpec) -> list[str]:
    return [
        "def build(device):",
        f"    left, right = (torch.rand({spec.size}, {spec.size}).to(torch.{spec.dtype}).to(device) for _ in range(2))",
        "    product = torch.empty_like(left)",
        "    def step(index):",
        "        torch.mm(left, right, out=product)",
        "        product[0, 0].item()  # waits for the device",
        "    return step",
    ]


def _pipeline(spec: PipelineSpec) -> list[str]:
    rows, columns = spec.shape
    scalar = repr(spec.scalar if spec.dtype.startswith(("float", "bfloat")) else int(spec.scalar))
    operation = {
        "add": f"moved + {scalar}",
        "multiply": f"moved * {scalar}",
        "matmul": "moved @ moved.T",
        "relu": "torch.relu(moved)",
    }[spec.operation]
    return [
        "def build(device):",
        "    def step(index):",
        f"        moved = torch.ones({rows}, {columns}, dtype=torch.{spec.dtype}).to(device)",
        f"        ({operation}).cpu()",
        "    return step",
    ]


def _find(lines: list[str], beginning: str) -> int:
    return next(number for number, line in enumerate(lines) if line.lstrip().startswith(beginning))


def _dedented(lines: list[str]) -> list[str]:
    room = len(lines[0]) - len(lines[0].lstrip())
    return [line[room:] for line in lines]


def _indented(lines: list[str], levels: int = 1) -> list[str]:
    return [f"{'    ' * levels}{line}" for line in lines]
