"""Generates a training as a plain PyTorch program, on one device or under torchrun on several; and steps of a model by
its config, with transformers.

A training's losses are those of the run, bit for bit on the same CPU; a text model gets random tokens.
"""

from __future__ import annotations

import json
import math

from gpudash.devices.names import kind_of
from gpudash.specs import ModelSpec, TrainingSpec
from gpudash.specs.model import BITSANDBYTES, SERVE
from gpudash.specs.training import (
    CLASSES,
    COLOURS,
    CONTRAST,
    FEATURES,
    HALVINGS,
    IMAGE_SIDE,
    MOMENTUM,
    MOST_WRITTEN,
    SHOWN,
    SPREAD,
    TILE,
)
from gpudash.workloads.programs.parallel.job import BACKENDS
from gpudash.workloads.programs.text import LEFT_OUT, LIMIT

WARM_UP = 3
"""How many first answers are left out of an inference's latency, as in the run."""

_AUTOCAST = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}

_MODEL_DTYPES = {
    "fp32": "torch.float32",
    "amp": "torch.float32",
    "amp_fp16": "torch.float32",
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
}

_MODEL_AUTOCAST = {"amp": "torch.bfloat16", "amp_fp16": "torch.float16"}

_MODEL_OPTIMIZERS = {
    "adamw": "torch.optim.AdamW(parameters, lr=1e-4)",
    "adamw_fused": "torch.optim.AdamW(parameters, lr=1e-4, fused=True)",
    "adamw8bit": "bitsandbytes.optim.AdamW8bit(parameters, lr=1e-4)",
    "paged_adamw": "bitsandbytes.optim.PagedAdamW(parameters, lr=1e-4)",
    "paged_adamw8bit": "bitsandbytes.optim.PagedAdamW8bit(parameters, lr=1e-4)",
    "adafactor": "Adafactor(parameters, lr=1e-4, scale_parameter=False, relative_step=False)",
    "momentum": "torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)",
    "sgd": "torch.optim.SGD(parameters, lr=1e-4)",
}


def training_code(spec: TrainingSpec, device: str) -> list[str]:
    """The lines of the program."""
    modules = []
    if spec.model == "transformer":
        modules = ["pathlib", "sysconfig"]
    if spec.mode == "inference":
        modules += ["time"]
    first = device
    if spec.move_at_epoch > 1:
        first = "cpu"
    deterministic = "torch.use_deterministic_algorithms(True)  # on CUDA also set CUBLAS_WORKSPACE_CONFIG=:4096:8"
    return [
        *(f"import {module}" for module in modules),
        *lines_if(modules, ""),
        "import torch",
        "from torch import nn",
        "from torch.nn import functional",
        *lines_if(_checkpointing(spec), "from torch.utils.checkpoint import checkpoint"),
        "",
        f"torch.set_num_threads({spec.threads or 1})",
        f"torch.manual_seed({spec.seed})",
        *lines_if(spec.deterministic, deterministic),
        f'device = torch.device("{first}")',
        *_model_lines(spec),
        *(_inference(spec) if spec.mode == "inference" else _training_lines(spec, device)),
    ]


def _model_lines(spec: TrainingSpec) -> list[str]:
    """The data, a function ``batch(index)``, and the model on ``device``."""
    return {"transformer": _transformer, "mlp": _mlp, "cnn": _cnn}[spec.model](spec)


def _checkpointing(spec: TrainingSpec) -> bool:
    return spec.checkpointing and spec.mode == "train"


def _output(spec: TrainingSpec, layer: str) -> str:
    """A layer's output; with checkpointing the backward pass recomputes the layer."""
    if _checkpointing(spec):
        return f"checkpoint({layer}, x, use_reentrant=False, preserve_rng_state=False)"
    return f"{layer}(x)"


def _transformer(spec: TrainingSpec) -> list[str]:
    width, sequence = spec.width, spec.sequence
    embeddings = f"nn.Embedding(len(characters), {width}), nn.Embedding({sequence}, {width})"
    left_out = ", ".join(f'"{name}"' for name in sorted(LEFT_OUT))
    return [
        'library = pathlib.Path(sysconfig.get_path("stdlib"))',
        f"left_out = {{{left_out}}}",
        'paths = [path for path in library.rglob("*.py") if not left_out & set(path.relative_to(library).parts)]',
        f'data = b"".join(path.read_bytes() for path in sorted(paths, key=pathlib.Path.as_posix))[:{LIMIT}]',
        "characters, text = torch.frombuffer(bytearray(data), dtype=torch.uint8).unique(return_inverse=True)",
        "",
        "def batch(index):",
        f"    generator = torch.Generator().manual_seed({spec.seed} * 1_000_003 + index)",
        f"    starts = torch.randint(len(text) - {sequence}, ({spec.step_batch},), generator=generator)",
        f"    part = text[starts[:, None] + torch.arange({sequence + 1})]",
        "    return part[:, :-1].contiguous(), part[:, 1:].contiguous()",
        "",
        *_block(spec),
        "",
        "class Transformer(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        f"        self.characters, self.positions = {embeddings}",
        f"        self.blocks = nn.ModuleList(Block() for _ in range({spec.depth}))",
        f"        self.norm, self.head = nn.LayerNorm({width}), nn.Linear({width}, len(characters))",
        "    def forward(self, x):",
        "        x = self.characters(x) + self.positions(torch.arange(x.shape[1], device=x.device))",
        "        for block in self.blocks:",
        f"            x = {_output(spec, 'block')}",
        "        return self.head(self.norm(x))",
        "",
        "model = Transformer().to(device)",
    ]


def _block(spec: TrainingSpec) -> list[str]:
    width = spec.width
    wider = f"nn.Linear({width}, {4 * width}), nn.GELU(), nn.Linear({4 * width}, {width})"
    parts = f"self.query_key_value(self.norm(x)).unflatten(-1, (3, {spec.heads}, -1))"
    return [
        "class Block(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        f"        self.norm, self.next_norm = nn.LayerNorm({width}), nn.LayerNorm({width})",
        f"        self.query_key_value, self.projection = nn.Linear({width}, {3 * width}), nn.Linear({width}, {width})",
        f"        self.feed_forward = nn.Sequential({wider})",
        "    def forward(self, x):",
        f"        query, key, value = {parts}.permute(2, 0, 3, 1, 4)",
        "        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)",
        "        x = x + self.projection(attended.transpose(1, 2).flatten(2))",
        "        return x + self.feed_forward(self.next_norm(x))",
    ]


def _mlp(spec: TrainingSpec) -> list[str]:
    width, group = spec.width, spec.mlp_group
    grouped = [
        "class Mlp(nn.Sequential):",
        "    def forward(self, x):",
        f"        for first in range(0, len(self), {group}):",
        f"            x = {_output(spec, f'nn.Sequential(*self[first : first + {group}])')}",
        "        return x",
        "",
    ]
    checkpointing = _checkpointing(spec)
    return [
        f"generator = torch.Generator().manual_seed({spec.seed})",
        f"centres = {SPREAD} * torch.randn({CLASSES}, {FEATURES}, generator=generator)",
        f"labels = torch.randint({CLASSES}, ({spec.samples},), generator=generator)",
        f"points = centres[labels] + torch.randn({spec.samples}, {FEATURES}, generator=generator)",
        "",
        *_batch_of_samples(spec),
        "",
        *lines_if(checkpointing, *grouped),
        f"layers = [nn.Linear({FEATURES}, {width}), nn.ReLU()]",
        f"for _ in range({spec.depth - 1}):",
        f"    layers += [nn.Linear({width}, {width}), nn.ReLU()]",
        f"model = {'Mlp' if checkpointing else 'nn.Sequential'}(*layers, nn.Linear({width}, {CLASSES})).to(device)",
    ]


def _cnn(spec: TrainingSpec) -> list[str]:
    width, side = spec.width, IMAGE_SIDE
    return [
        f"generator = torch.Generator().manual_seed({spec.seed})",
        f"tiles = {CONTRAST} * torch.randn({CLASSES}, {COLOURS}, {TILE}, {TILE}, generator=generator)",
        f"labels = torch.randint({CLASSES}, ({spec.samples},), generator=generator)",
        f"noise = torch.randn({spec.samples}, {COLOURS}, {side}, {side}, generator=generator)",
        f"points = tiles.repeat(1, 1, {side // TILE}, {side // TILE})[labels] + noise",
        "",
        *_batch_of_samples(spec),
        "",
        "class Convolution(nn.Module):",
        "    def __init__(self, stride):",
        "        super().__init__()",
        "        self.stride = stride",
        f"        self.convolution = nn.Conv2d({width}, {width}, 3, stride=stride, padding=1, bias=False)",
        f"        self.norm = nn.GroupNorm({math.gcd(8, width)}, {width})",
        "    def forward(self, x):",
        "        y = functional.relu(self.norm(self.convolution(x)))",
        "        return y if self.stride > 1 else x + y",
        "",
        "class Cnn(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        f"        self.stem = nn.Conv2d({COLOURS}, {width}, 3, padding=1)",
        f"        strides = [2 if block < {HALVINGS} else 1 for block in range({spec.depth})]",
        "        self.blocks = nn.ModuleList(Convolution(stride) for stride in strides)",
        f"        self.head = nn.Linear({width}, {CLASSES})",
        "    def forward(self, x):",
        "        x = functional.relu(self.stem(x))",
        "        for block in self.blocks:",
        f"            x = {_output(spec, 'block')}",
        "        return self.head(x.mean((2, 3)))",
        "",
        "model = Cnn().to(device)",
    ]


def _batch_of_samples(spec: TrainingSpec) -> list[str]:
    return [
        "def batch(index):",
        f"    first = index * {spec.step_batch} % len(points)",
        f"    return points[first : first + {spec.step_batch}], labels[first : first + {spec.step_batch}]",
    ]


def _forward(spec: TrainingSpec, *more: str, inputs: str = "inputs") -> list[str]:
    lines = [f"logits = model({inputs})", *more]
    if spec.precision == "fp32":
        return lines
    return [f"with torch.autocast(device.type, {_AUTOCAST[spec.precision]}):", *indented(lines)]


def lines_if(wanted: object, *lines: str) -> tuple[str, ...]:
    """``lines`` if ``wanted``, otherwise none."""
    return lines if wanted else ()


def indented(lines: list[str], levels: int = 1) -> list[str]:
    """``lines`` indented by this many levels."""
    return [f"{'    ' * levels}{line}" for line in lines]


def _inference(spec: TrainingSpec) -> list[str]:
    """Timed inference steps, and what is predicted in the end: the generated text, or classes."""
    resident, writes = spec.batches == "resident", spec.model == "transformer"
    fetch = ["inputs = batch(0)[0]" + (".to(device)" if resident else "")]
    there = "inputs.to(device)"
    if resident:
        there = "inputs"
    if resident or writes:
        batch = []
    else:
        batch = [f"        inputs, labels = batch(step % {spec.batches_per_epoch})"]
    newest = "answers[:, -1:]"
    if resident:
        newest = "logits[:, -1:].argmax(-1)"
    written = [
        "        written.append(answers[:, -1])",
        f"        inputs = torch.cat((inputs[:, 1:], {newest}), 1)",
    ]
    return [
        *_pretraining(spec),
        "model.eval()",
        "seconds = []",
        *lines_if(writes, "written = []"),
        *lines_if(writes or resident, *fetch),
        "with torch.no_grad():",
        f"    for step in range({spec.steps}):",
        *batch,
        "        began = time.perf_counter()",
        *indented(_forward(spec, inputs=there), 2),
        "        answers = logits.argmax(-1).cpu()",
        "        seconds.append(time.perf_counter() - began)",
        *lines_if(writes, *written),
        f"latency = sorted(seconds[{WARM_UP if spec.steps > WARM_UP else 0}:])",
        'print(f"median latency {latency[len(latency) // 2]:.6f} s")',
        *_predictions(spec),
    ]


def _predictions(spec: TrainingSpec) -> list[str]:
    """The predictions for the first of the batch."""
    if spec.model == "transformer":
        return [
            f"for row in torch.stack(written[:{MOST_WRITTEN}], 1)[:{SHOWN}]:",
            '    print(repr(bytes(characters[row].tolist()).decode(errors="replace")))',
        ]
    return [
        f"for sure, found in zip(*logits[:{SHOWN}].cpu().float().softmax(-1).max(-1)):",
        '    print(f"class {found}, {sure:.0%} sure")',
    ]


def _pretraining(spec: TrainingSpec) -> list[str]:
    """Training on the CPU before inference."""
    if not spec.pretraining:
        return []
    if spec.model == "transformer":
        count = spec.pretraining + 1
    else:
        count = spec.batches_per_epoch
    return [
        "model.cpu()",
        f"optimizer = {_optimizer(spec)}",
        f"for step in range(1, {spec.pretraining + 1}):",
        f"    inputs, targets = batch(step % {count})",
        "    functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten()).backward()",
        "    optimizer.step()",
        "    optimizer.zero_grad(set_to_none=True)",
        "model.to(device)",
    ]


def _training_lines(spec: TrainingSpec, device: str) -> list[str]:
    """The optimizer and the steps, each of which prints its number, loss and accuracy."""
    count = spec.batches_per_epoch
    every = f"[[tensor.to(device) for tensor in batch(index)] for index in range({count})]"
    return [
        f"optimizer = {_optimizer(spec)}",
        *lines_if(spec.precision == "fp16", "scaler = torch.amp.GradScaler(device.type)"),
        *lines_if(spec.batches == "resident", f"resident = {every}"),
        *lines_if(spec.keep_intermediates, "kept = []"),
        "step = 0",
        f"for epoch in range(1, {spec.passes + 1}):",
        *lines_if(spec.move_at_epoch > 1, *_moving(spec, device)),
        f"    generator = torch.Generator().manual_seed({spec.seed} * 1_000_003 + epoch)",
        f"    for index in torch.randperm({count}, generator=generator).tolist()[: {spec.steps} - step]:",
        "        step += 1",
        *indented(_step(spec), 2),
    ]


def _optimizer(spec: TrainingSpec) -> str:
    name, more = {
        "sgd": ("SGD", ""),
        "momentum": ("SGD", f", momentum={MOMENTUM}"),
        "adam": ("Adam", ""),
        "adamw": ("AdamW", ""),
    }[spec.optimizer]
    return f"torch.optim.{name}(model.parameters(), lr={spec.learning_rate!r}{more})"


def _moving(spec: TrainingSpec, device: str) -> list[str]:
    scaler = [
        "        scale = scaler.state_dict()",
        "        scaler = torch.amp.GradScaler(device.type)",
        "        scaler.load_state_dict(scale)",
    ]
    resident = "        resident = [[tensor.to(device) for tensor in pair] for pair in resident]"
    return [
        f"    if epoch == {spec.move_at_epoch}:  # the model, then the optimizer's state after its parameters",
        f'        device = torch.device("{device}")',
        "        state = optimizer.state_dict()",
        "        model.to(device)",
        "        optimizer.load_state_dict(state)",
        *lines_if(spec.precision == "fp16", *scaler),
        *lines_if(spec.batches == "resident", resident),
    ]


def _step(spec: TrainingSpec) -> list[str]:
    """One optimizer step: the gradients of one batch, or of several that accumulate."""
    whole = "batch(index)"
    if spec.batches == "resident":
        whole = "resident[index]"
    if spec.precision == "fp16":
        update = ["scaler.step(optimizer)", "scaler.update()"]
    else:
        update = ["optimizer.step()"]
    if spec.micro_batches == 1:
        if spec.batches == "resident":
            taken = whole
        else:
            taken = f"(tensor.to(device) for tensor in {whole})"
        return [
            f"inputs, targets = {taken}",
            *_gradients(spec),
            *update,
            "optimizer.zero_grad(set_to_none=True)",
            "accuracy = (logits.detach().argmax(-1) == targets).float().mean()",
            'print(f"{step} {loss.item()!r} {accuracy.item():.4f}")',
        ]
    if spec.batches == "resident":
        moved = []
    else:
        moved = ["inputs, targets = inputs.to(device), targets.to(device)"]
    return [
        "losses, right = [], []",
        f"parts = (tensor.split({spec.batch}) for tensor in {whole})",
        "for inputs, targets in zip(*parts):",
        *indented([*moved, *_gradients(spec)]),
        "    losses.append(loss.detach())",
        "    right.append((logits.detach().argmax(-1) == targets).float().mean())",
        *update,
        "optimizer.zero_grad(set_to_none=True)",
        "loss, accuracy = torch.stack(losses).mean(), torch.stack(right).mean()",
        'print(f"{step} {loss.item()!r} {accuracy.item():.4f}")',
    ]


def _gradients(spec: TrainingSpec) -> list[str]:
    """Forward and backward pass of one batch."""
    share = "loss"
    if spec.micro_batches > 1:
        share = f"(loss / {spec.micro_batches})"
    scaled = share
    if spec.precision == "fp16":
        scaled = f"scaler.scale({share})"
    return [
        *_forward(spec, "loss = functional.cross_entropy(logits.flatten(0, -2), targets.flatten())"),
        f"{scaled}.backward()",
        *lines_if(spec.keep_intermediates, "kept.append((loss, logits))"),
        *lines_if(spec.batches == "pingpong", "inputs.cpu(), targets.cpu()"),
    ]


def split_code(spec: TrainingSpec, device: str) -> list[str]:
    """The lines of the program for a model whose halves are on two devices."""
    place, second = spec.second_half, spec.device_names[1]
    first_parts, second_parts = {
        "transformer": (
            f"model.characters, model.positions, model.blocks[:{place}]",
            f"model.blocks[{place}:], model.norm, model.head",
        ),
        "mlp": (f"model[:{place}],", f"model[{place}:],"),
        "cnn": (f"model.stem, model.blocks[:{place}]", f"model.blocks[{place}:], model.head"),
    }[spec.model]
    found: list[str] = []
    for line in training_code(spec.joined_spec, device):
        indent = " " * (len(line) - len(line.lstrip()))
        if line.startswith("device = "):
            found += [line, f'second = torch.device("{second}")']
        elif line.startswith("model = "):
            found += [
                line.removesuffix(".to(device)"),
                f"for part in ({first_parts}): part.to(device)",
                f"for part in ({second_parts}): part.to(second)",
            ]
        elif line.strip() == "for block in self.blocks:":
            found += [
                f"{indent}for place, block in enumerate(self.blocks):",
                f"{indent}    x = x.to(second) if place == {place} else x",
            ]
        elif line.strip().startswith("for first in range(0, len(self)"):
            found += [line, f"{indent}    x = x.to(second) if first == {place} else x"]
        elif line.strip() == "logits = model(inputs)" and spec.model == "mlp" and not spec.checkpointing:
            found.append(f"{indent}logits = model[{place}:](model[:{place}](inputs).to(second))")
        else:
            found.append(_targets_on_second(line))
    return found


def _targets_on_second(line: str) -> str:
    """A line that moves a batch, with the targets on the device of the second half's output."""
    line = line.replace("targets.to(device)", "targets.to(second)")
    both = "tensor.to(place) for tensor, place in zip(batch(index), (device, second))"
    return line.replace("tensor.to(device) for tensor in batch(index)", both)


def ranks_code(spec: TrainingSpec, device: str) -> list[str]:
    """The lines of the program; the first says how to start it. Rank 0 prints the means over all ranks."""
    names, rank, joined = spec.device_names, spec.rank_spec, spec.joined_spec
    here = f'device = torch.device({list(names)!r}[int(os.environ["LOCAL_RANK"])])'.replace("'", '"')
    on_gpu = kind_of(names[0]) == "cuda"
    needed = {"os", *lines_if(not on_gpu, "sys"), *lines_if(spec.model == "transformer", "pathlib", "sysconfig")}
    sharded = spec.parallel == "fsdp"
    deterministic = "torch.use_deterministic_algorithms(True)  # on CUDA also set CUBLAS_WORKSPACE_CONFIG=:4096:8"
    return [
        f"# torchrun --standalone --nproc-per-node={len(names)} --max-restarts={spec.max_restarts} THIS_FILE",
        f"import {', '.join(sorted(needed))}",
        "",
        "import torch",
        "from torch import distributed, nn",
        *lines_if(sharded, "from torch.distributed.fsdp import fully_shard"),
        f"from torch.nn import functional{'' if sharded else ', parallel'}",
        *lines_if(spec.checkpointing, "from torch.utils.checkpoint import checkpoint"),
        "",
        f"torch.set_num_threads({spec.threads or f'max(1, (os.cpu_count() or 1) // {len(names)})'})",
        f"torch.manual_seed({spec.seed})",
        *lines_if(spec.deterministic, deterministic),
        here,
        *lines_if(on_gpu, "torch.cuda.set_device(device)"),
        f'distributed.init_process_group("{BACKENDS[kind_of(names[0])]}")',
        "rank = distributed.get_rank()",
        *_model_lines(joined),
        *_wrapped(spec),
        f"own = slice(rank * {rank.step_batch}, (rank + 1) * {rank.step_batch})  # this rank's part of each batch",
        *_rank_steps(spec, rank, device),
        "distributed.destroy_process_group()",
        # Gloo's threads outlive the group. One that still holds a tensor when Python shuts down aborts the process.
        *lines_if(not on_gpu, "sys.stdout.flush()"),
        *lines_if(not on_gpu, "os._exit(0)  # Gloo's threads may hold tensors, which aborts Python's own shutdown"),
    ]


def _wrapped(spec: TrainingSpec) -> list[str]:
    if spec.parallel == "ddp":
        return ["model = parallel.DistributedDataParallel(model)"]
    parts = "[layer for layer in model if isinstance(layer, nn.Linear)]"
    if spec.model != "mlp":
        parts = "model.blocks"
    return [
        f"mesh = distributed.init_device_mesh(device.type, ({spec.world_size},))",
        f"for part in [*{parts}, model]: fully_shard(part, mesh=mesh)",
    ]


def _rank_steps(spec: TrainingSpec, rank: TrainingSpec, device: str) -> list[str]:
    """The steps of one rank, with its share of each batch; a step's last micro-batch reduces gradients."""
    last = f"number == {spec.micro_batches - 1}"
    shares = {
        "ddp": f"model.require_backward_grad_sync = {last}  # as no_sync() does",
        "fsdp": f"model.set_requires_gradient_sync({last})",
    }[spec.parallel]
    found: list[str] = []
    for line in _training_lines(rank, device):
        indent = " " * (len(line) - len(line.lstrip()))
        if line.strip() == "for inputs, targets in zip(*parts):":
            found += [f"{indent}for number, (inputs, targets) in enumerate(zip(*parts)):", f"{indent}    {shares}"]
        elif line.strip().startswith("print("):
            found += [
                f"{indent}told = torch.stack((loss.detach(), accuracy)) / {spec.world_size}",
                f"{indent}distributed.all_reduce(told)",
                f'{indent}if rank == 0: print(f"{{step}} {{told[0].item()!r}} {{told[1].item():.4f}}")',
            ]
        elif "batch(index)" in line:
            found.append(line.replace("tensor.", "tensor[own]."))
        else:
            found.append(line)
    return found


def model_code(spec: ModelSpec, device: str) -> list[str]:
    """The lines of the program.

    Raises:
        ValueError: for packed weights, which need the weights themselves, for several devices, for a server, and for
            what a library's own training loop does.
    """
    refusal = _refusal(spec)
    if refusal:
        raise ValueError(refusal)
    learns = spec.task != "infer"
    attention = "" if spec.attention == "auto" else f', attn_implementation="{spec.attention}"'
    dtype = _MODEL_DTYPES.get(spec.precision, "config.dtype or torch.float32")
    length = 'min(2048, getattr(text, "max_position_embeddings", 2048))'
    if spec.sequence:
        length = str(spec.sequence)
    return [
        *lines_if(learns and spec.optimizer in BITSANDBYTES, "import bitsandbytes"),
        "import torch",
        "import transformers",
        *lines_if(spec.task == "lora", "from peft import LoraConfig, get_peft_model"),
        *lines_if(learns and spec.optimizer == "adafactor", "from transformers.optimization import Adafactor"),
        "",
        f"torch.manual_seed({spec.seed})",
        f'device = torch.device("{device}")',
        f"config = transformers.AutoConfig.from_pretrained({json.dumps(spec.folder)})",
        "kind = getattr(transformers, config.architectures[0])",
        "with device:",
        f"    model = kind._from_config(config, dtype={dtype}{attention})",
        "text = config.get_text_config()",
        f"tokens = torch.randint(text.vocab_size, ({spec.batch}, {length}), device=device)",
        *(_learning(spec) if learns else _prompting(spec)),
    ]


def _refusal(spec: ModelSpec) -> str:
    """Why no program is shown; "" if one is."""
    if spec.task == SERVE:
        return "a server has a program of its own, such as vllm serve"
    if spec.device_names:
        return f"a model over {len(spec.device_names)} devices is not shown; show the program of one device"
    if spec.packed:
        return f"{spec.packed} weights are packed from the weights themselves; show the program without them"
    if spec.task == "infer":
        return ""
    if spec.loss != "full":
        return f"a {spec.loss} loss is of a library, such as torchtune; show the program with --loss full"
    if spec.task == "train" and spec.optimizer_in_backward:
        return "an update within the backward pass is not shown; show the program without it"
    if spec.keeps != "nothing":
        return "what checkpointing keeps is not shown; show the program with --keeps nothing"
    if spec.packing:
        return "packed rows are made by a data set; show the program without --packing"
    if spec.offload != "none":
        return f"{spec.offload} on the host are not shown; show the program without --offload"
    return ""


def _model_autocast(spec: ModelSpec) -> str:
    dtype = _MODEL_AUTOCAST.get(spec.precision, "torch.bfloat16")
    return f"torch.autocast(device.type, {dtype}, enabled={spec.precision in _MODEL_AUTOCAST})"


def _prompting(spec: ModelSpec) -> list[str]:
    return [
        "model.eval()",
        f"for step in range({spec.steps}):",
        f"    with torch.no_grad(), {_model_autocast(spec)}:",
        "        model(input_ids=tokens, logits_to_keep=1)",
        '    print(f"step {step + 1}")',
    ]


def _learning(spec: ModelSpec) -> list[str]:
    scaled = spec.precision == "amp_fp16"
    unscale = []
    if scaled and spec.clip:
        unscale = ["    scaler.unscale_(optimizer)"]
    targets = spec.lora_targets.split(",") if "," in spec.lora_targets else spec.lora_targets or None
    rank = f"r={spec.lora_rank}, lora_alpha={2 * spec.lora_rank}, target_modules={json.dumps(targets)}"
    adapters = [f"model = get_peft_model(model, LoraConfig({rank.replace('null', 'None')}))"]
    return [
        "model.config.use_cache = False",
        *lines_if(spec.task == "lora", *adapters),
        *lines_if(spec.checkpointing, "model.gradient_checkpointing_enable()"),
        "model.train()",
        "parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]",
        f"optimizer = {_MODEL_OPTIMIZERS[spec.optimizer]}",
        *lines_if(scaled, "scaler = torch.amp.GradScaler(device.type)"),
        f"for step in range({spec.steps}):",
        f"    for _ in range({spec.accumulation}):",
        f"        with {_model_autocast(spec)}:",
        f"            loss = model(input_ids=tokens, labels=tokens).loss / {spec.accumulation}",
        f"        {'scaler.scale(loss)' if scaled else 'loss'}.backward()",
        *unscale,
        *lines_if(spec.clip, f"    torch.nn.utils.clip_grad_norm_(parameters, {spec.clip:g})"),
        *(["    scaler.step(optimizer)", "    scaler.update()"] if scaled else ["    optimizer.step()"]),
        "    optimizer.zero_grad()",
        f'    print(f"step {{step + 1}}: loss {{loss.item() * {spec.accumulation}:.4f}}")',
    ]
