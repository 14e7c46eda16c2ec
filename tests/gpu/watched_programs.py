"""Programs as people write them, one for each way in which watching them might change how they end.

``python watched_programs.py NAME FILE`` runs one on the first GPU; what it reaches is written to FILE, line by line.
None depends on a value that a GPU computes. `SOME` are those of a quick look; those in `NEEDS` want a library more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

Program = Callable[[], object]

GPU = "cuda:0"
STEPS = 30

PROGRAMS: dict[str, Program] = {}

NEEDS = {
    "transformers_trainer": "transformers",
    "transformers_generation": "transformers",
    "lightning_trainer": "lightning",
    "accelerated": "accelerate",
}

RANKS = {"two_ranks": 2, "two_sharded_ranks": 2}
"""Those that torchrun starts, and how many of each; every rank has a GPU."""

SOME = (
    "adamw",
    "loop_with_logging",
    "hooks_like_lightning",
    "compiled",
    "loader_workers",
    "out_of_memory",
    "importing_in_a_thread",
    "two_ranks",
)


def told(text: object) -> None:
    """Write down what was reached."""
    with Path(sys.argv[2]).open("a") as file:
        file.write(f"{text}\n")


def program(made: Program) -> Program:
    PROGRAMS[made.__name__] = made
    return made


def model(width: int = 256) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 10))


def batch(size: int = 64, width: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, width, device=GPU), torch.zeros(size, dtype=torch.long, device=GPU)


def train(
    net: nn.Module, optimizer: Any, steps: int = STEPS, context: Any = None, size: int = 64, width: int = 256
) -> None:
    for _ in range(steps):
        inputs, wanted = batch(size, width)
        optimizer.zero_grad()
        with context or nullcontext():
            loss = functional.cross_entropy(net(inputs), wanted)
        loss.backward()
        optimizer.step()
    told(f"{steps} steps")


class Rows(Dataset[tuple[torch.Tensor, int]]):
    """Made as they are asked for."""

    def __len__(self) -> int:
        return 64 * STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(256), index % 10


def train_from(loader: Any) -> None:
    net = model().to(GPU)
    optimizer = torch.optim.AdamW(net.parameters())
    for inputs, wanted in loader:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(net(inputs.to(GPU, non_blocking=True)), wanted.to(GPU)).backward()
        optimizer.step()
    told("all rows")


@program
def adamw() -> None:
    net = model().to(GPU)
    train(net, torch.optim.AdamW(net.parameters(), lr=1e-3))


@program
def adamw_made_late() -> None:
    net = model().to(GPU)
    for _ in range(3 * STEPS):
        net(batch()[0])
    train(net, torch.optim.AdamW(net.parameters(), lr=1e-3))


@program
def adamw_fused() -> None:
    net = model().to(GPU)
    train(net, torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True))


@program
def adamw_one_by_one() -> None:
    net = model().to(GPU)
    train(net, torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=False))


@program
def sgd() -> None:
    net = model().to(GPU)
    train(net, torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9))


@program
def every_optimizer() -> None:
    for name in ("Adagrad", "Adadelta", "RMSprop", "RAdam", "NAdam", "Adamax"):
        net = model().to(GPU)
        train(net, getattr(torch.optim, name)(net.parameters()), 5)


@program
def scheduled() -> None:
    net = model().to(GPU)
    optimizer = torch.optim.AdamW(net.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        train(net, optimizer, 1)
        scheduler.step()


@program
def autocast() -> None:
    net = model().to(GPU)
    train(net, torch.optim.AdamW(net.parameters()), context=torch.autocast("cuda", torch.bfloat16))


@program
def scaled() -> None:
    net = model().to(GPU)
    optimizer, scaler = torch.optim.AdamW(net.parameters()), torch.amp.GradScaler("cuda")
    for _ in range(STEPS):
        inputs, wanted = batch()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = functional.cross_entropy(net(inputs), wanted)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    told("scaled")


@program
def checkpointed() -> None:
    from torch.utils.checkpoint import checkpoint

    net = model().to(GPU)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(STEPS):
        inputs, wanted = batch()
        loss = functional.cross_entropy(checkpoint(net, inputs, use_reentrant=False), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    told("checkpointed")


@program
def convolutions() -> None:
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)).to(GPU)
    optimizer: Any = None
    for _ in range(STEPS):
        loss = functional.cross_entropy(net(torch.randn(8, 3, 32, 32, device=GPU)), batch(8)[1])
        optimizer = optimizer or torch.optim.AdamW(net.parameters())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    told("convolutions")


@program
def encoder() -> None:
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    net = nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(16 * 256, 10)
    )
    net = net.to(GPU)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(STEPS):
        loss = functional.cross_entropy(net(torch.randn(4, 16, 256, device=GPU)), batch(4)[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    told("encoder")


@program
def inference() -> None:
    net = model().to(GPU).eval()
    with torch.inference_mode():
        for _ in range(10 * STEPS):
            net(batch()[0])
    told("inferred")


@program
def loop_with_logging() -> None:
    import logging

    log = logging.getLogger("gpudash")
    net = model().to(GPU)
    optimizer = torch.optim.AdamW(net.parameters())
    for step in range(STEPS):
        inputs, wanted = batch()
        loss = functional.cross_entropy(net(inputs), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.info("step", extra={"step": step, "loss": loss})
    told("logged")


@program
def hooks_like_lightning() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.net(inputs), wanted)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    module = Module().to(GPU)
    optimizer = module.configure_optimizers()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = module.training_step(*batch())
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    told("closures")


@program
def compiled() -> None:
    net = torch.compile(model().to(GPU))
    net(batch()[0])
    told("compiled")


@program
def compiled_for_training() -> None:
    net = model().to(GPU)
    train(torch.compile(net), torch.optim.AdamW(net.parameters()))


@program
def compiled_without_inductor() -> None:
    net = model().to(GPU)
    train(torch.compile(net, backend="aot_eager"), torch.optim.AdamW(net.parameters()))


@program
def compiled_or_else_eager() -> None:
    torch._dynamo.config.suppress_errors = True
    net = model().to(GPU)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(torch.compile(net), torch.optim.AdamW(net.parameters()))


@program
def exported() -> None:
    found = torch.export.export(model().to(GPU), (batch()[0],))
    told(type(found).__name__)


@program
def traced() -> None:
    net = torch.jit.trace(model().to(GPU), (batch()[0],), check_trace=False)
    net(batch()[0])
    told("traced")


@program
def functional_gradients() -> None:
    net = model().to(GPU)
    weights = dict(net.named_parameters())

    def loss(weights: Any, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(torch.func.functional_call(net, weights, (inputs[None],)), wanted[None])

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, *batch(8))
    told(sorted(found))


@program
def importing_in_a_thread() -> None:
    def work() -> None:
        import torch._dynamo
        import torch._inductor.compile_fx

        told(f"imported {torch._inductor.compile_fx.__name__}")

    net = model().to(GPU)
    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(10 * STEPS):
        net(batch()[0])
    thread.join()


@program
def training_in_threads() -> None:
    def work() -> None:
        net = model().to(GPU)
        train(net, torch.optim.AdamW(net.parameters()))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@program
def loader_workers() -> None:
    train_from(DataLoader(Rows(), batch_size=64, num_workers=2, pin_memory=True))


@program
def loader_workers_that_stay() -> None:
    loader = DataLoader(Rows(), batch_size=256, num_workers=2, persistent_workers=True)
    train_from(loader)
    train_from(loader)


@program
def loader_workers_made_anew() -> None:
    train_from(DataLoader(Rows(), batch_size=256, num_workers=1, multiprocessing_context="spawn"))


@program
def loader_worker_that_fails() -> None:
    class Broken(Rows):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if index == 640:
                raise KeyError(index)
            return super().__getitem__(index)

    train_from(DataLoader(Broken(), batch_size=64, num_workers=2))


@program
def forked_after_cuda() -> None:
    net = model().to(GPU)
    train(net, torch.optim.AdamW(net.parameters()))
    child = os.fork()
    if child == 0:
        try:
            torch.ones(1, device=GPU)
        except RuntimeError as error:
            told(str(error)[:40])
        os._exit(4)
    told(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    train(net, torch.optim.AdamW(net.parameters()))


@program
def forked_before_cuda() -> None:
    child = os.fork()
    net = model().to(GPU)
    train(net, torch.optim.AdamW(net.parameters()))
    if child == 0:
        os._exit(0)
    told(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@program
def subprocesses() -> None:
    for name in ("adamw", "inference"):
        told(subprocess.run([sys.executable, __file__, name, sys.argv[2]], check=False).returncode)


@program
def out_of_memory() -> None:
    held = []
    while True:
        held.append(torch.empty(2**30, dtype=torch.uint8, device=GPU))
        if len(held) % 4 == 0:
            told(len(held))


@program
def out_of_memory_survived() -> None:
    net = model().to(GPU)
    optimizer = torch.optim.AdamW(net.parameters())
    capacity = torch.cuda.get_device_properties(GPU).total_memory
    rows = capacity // 256
    while True:
        try:
            inputs = torch.empty(rows, 256, device=GPU)
            break
        except torch.cuda.OutOfMemoryError:
            told("too many")
            rows //= 2
    del inputs
    train(net, optimizer)


@program
def under_a_cap() -> None:
    torch.cuda.set_per_process_memory_fraction(0.01, GPU)
    out_of_memory()


@program
def own_history() -> None:
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    net = model().to(GPU)
    train(net, torch.optim.AdamW(net.parameters()))
    path = f"{sys.argv[2]}.pickle"
    torch.cuda.memory._dump_snapshot(path)
    told(Path(path).stat().st_size > 1000)
    torch.cuda.memory._record_memory_history(enabled=None)
    train(net, torch.optim.AdamW(net.parameters()))


@program
def own_observer() -> None:
    torch.cuda.init()
    torch._C._cuda_attach_out_of_memory_observer(lambda *_: told("full"))
    out_of_memory()


@program
def own_statistics() -> None:
    net = model().to(GPU)
    torch.cuda.reset_peak_memory_stats()
    train(net, torch.optim.AdamW(net.parameters()))
    told(torch.cuda.max_memory_allocated())
    told(torch.cuda.memory_reserved())


@program
def profiled() -> None:
    net = model().to(GPU)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True):
        train(net, torch.optim.AdamW(net.parameters()))


@program
def graphed() -> None:
    net = model().to(GPU)
    inputs = batch()[0]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        net(inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        net(inputs)
    for _ in range(10 * STEPS):
        graph.replay()
    told("replayed")


@program
def several_streams() -> None:
    streams = [torch.cuda.Stream() for _ in range(4)]
    for step in range(4 * STEPS):
        with torch.cuda.stream(streams[step % 4]):
            inputs = torch.ones(64, 256, device=GPU)
            inputs.record_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()
    told("streams")


@program
def raised() -> None:
    net = model().to(GPU)
    train(net, torch.optim.AdamW(net.parameters()))
    net(torch.ones(3, 5, device=GPU))


@program
def left_with_a_number() -> None:
    adamw()
    sys.exit(7)


@program
def left_at_once() -> None:
    adamw()
    os._exit(8)


@program
def interrupted() -> None:
    adamw()
    signal.raise_signal(signal.SIGINT)


@program
def terminated() -> None:
    adamw()
    os.kill(os.getpid(), signal.SIGTERM)


@program
def with_an_alarm() -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    adamw()
    signal.setitimer(signal.ITIMER_REAL, 0)


@program
def strict_about_warnings() -> None:
    warnings.simplefilter("error")
    adamw()


@program
def generator_of_batches() -> None:
    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(STEPS):
            yield batch()

    net = model().to(GPU)
    optimizer = torch.optim.AdamW(net.parameters())
    for inputs, wanted in batches():
        functional.cross_entropy(net(inputs), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()
    told("generated")


@program
def saved_and_loaded() -> None:
    net = model().to(GPU)
    optimizer = torch.optim.AdamW(net.parameters())
    train(net, optimizer)
    path = f"{sys.argv[2]}.pt"
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
    found = torch.load(path, map_location=GPU)
    net.load_state_dict(found["net"])
    optimizer.load_state_dict(found["optimizer"])
    train(net, optimizer)


@program
def two_ranks() -> None:
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    rank = _join()
    net = DistributedDataParallel(model().to(f"cuda:{rank}"), device_ids=[rank])
    _train_rank(net, rank)
    distributed.destroy_process_group()


@program
def two_sharded_ranks() -> None:
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    rank = _join()
    net = model().to(f"cuda:{rank}")
    fully_shard(net)
    _train_rank(net, rank)
    distributed.destroy_process_group()


def _join() -> int:
    from torch import distributed

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl")
    return rank


def _train_rank(net: nn.Module, rank: int) -> None:
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(STEPS):
        inputs, wanted = (one.to(f"cuda:{rank}") for one in batch())
        functional.cross_entropy(net(inputs), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()
    told(f"{STEPS} steps of a rank")


@program
def transformers_trainer() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Texts(Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            tokens = torch.arange(32) % 100
            return {"input_ids": tokens, "labels": tokens}

    net = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=64, n_layer=2, n_head=2, n_positions=32))
    arguments = TrainingArguments(
        output_dir=f"{sys.argv[2]}.trainer",
        max_steps=STEPS,
        per_device_train_batch_size=4,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        logging_nan_inf_filter=False,
        disable_tqdm=True,
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # it would spread each batch over all GPUs
    trainer = Trainer(model=net, args=arguments, train_dataset=Texts())
    trainer.train()
    told(trainer.state.global_step)


@program
def transformers_generation() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    net = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=64, n_layer=2, n_head=2, n_positions=64)).to(GPU).eval()
    cache: Any = None
    tokens = torch.zeros(2, 1, dtype=torch.long, device=GPU)
    with torch.inference_mode():
        for _ in range(STEPS):
            found = net(tokens, past_key_values=cache, use_cache=True)
            cache = found.past_key_values
    told("generated")


@program
def lightning_trainer() -> None:
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, rows: Any, number: int) -> torch.Tensor:
            return functional.cross_entropy(self.net(rows[0]), rows[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=f"{sys.argv[2]}.lightning",
    )
    trainer.fit(Module(), DataLoader(Rows(), batch_size=16))
    told(trainer.global_step)


@program
def accelerated() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16")
    net = model()
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters()), DataLoader(Rows(), batch_size=64)
    )
    for inputs, wanted in loader:
        with accelerator.accumulate(net):
            accelerator.backward(functional.cross_entropy(net(inputs), wanted))
            optimizer.step()
            optimizer.zero_grad()
    told("accelerated")


def settle() -> None:
    """Wait until the thread that works through backward passes on the GPU has let go of the last one.

    torch 2.13 gives each pass a copy of Python's context (``torch/autograd/graph.py``), which that thread drops some
    time after ``backward`` has returned. Where Python is ending by then the process aborts: "terminate called without
    an active exception", watched or alone. One pass more, without a context, comes after it in the thread's queue.
    """
    if not torch.cuda.is_initialized():
        return
    with suppress(torch.OutOfMemoryError):
        last = torch.zeros(1, device="cuda", requires_grad=True).sum()
        engine = torch.autograd.Variable._execution_engine
        engine.run_backward((last,), (torch.ones_like(last),), False, False, (), True, True)


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
    told("end")
    settle()
