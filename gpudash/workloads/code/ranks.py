"""A training on several devices as a plain program for torchrun."""

from __future__ import annotations

from gpudash.devices.names import kind_of
from gpudash.specs import TrainingSpec
from gpudash.workloads.code.training import model_lines, training_lines

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def ranks_code(spec: TrainingSpec, device: str) -> list[str]:
    """The lines of the program; the first says how to start it. Rank 0 prints the means over all ranks."""
    names, rank, joined = spec.device_names, spec.rank_spec, spec.joined_spec
    here = f'device = torch.device({list(names)!r}[int(os.environ["LOCAL_RANK"])])'.replace("'", '"')
    on_gpu = kind_of(names[0]) == "cuda"
    modules = ["os", *(["pathlib", "sysconfig"] if spec.model == "transformer" else [])]
    sharding = ["from torch.distributed.device_mesh import init_device_mesh"]
    sharding += ["from torch.distributed.fsdp import fully_shard"]
    wrapper = sharding if spec.parallel == "fsdp" else ["from torch.nn.parallel import DistributedDataParallel"]
    deterministic = "torch.use_deterministic_algorithms(True)  # on CUDA also set CUBLAS_WORKSPACE_CONFIG=:4096:8"
    return [
        f"# torchrun --standalone --nproc-per-node={len(names)} --max-restarts={spec.max_restarts} THIS_FILE",
        f"import {', '.join(modules)}",
        "",
        "import torch",
        "from torch import distributed, nn",
        *wrapper,
        "from torch.nn import functional",
        *(["from torch.utils.checkpoint import checkpoint"] if spec.checkpointing else []),
        "",
        f"torch.set_num_threads({spec.threads or f'max(1, (os.cpu_count() or 1) // {len(names)})'})",
        f"torch.manual_seed({spec.seed})",
        *([deterministic] if spec.deterministic else []),
        here,
        *(["torch.cuda.set_device(device)"] if on_gpu else []),
        f'distributed.init_process_group("{BACKENDS[kind_of(names[0])]}")',
        "rank = distributed.get_rank()",
        *model_lines(joined),
        *_wrapped(spec),
        f"own = slice(rank * {rank.step_batch}, (rank + 1) * {rank.step_batch})  # this rank's part of each batch",
        *_steps(spec, rank, device),
        "distributed.destroy_process_group()",
    ]


def _wrapped(spec: TrainingSpec) -> list[str]:
    if spec.parallel == "ddp":
        return ["model = DistributedDataParallel(model)"]
    parts = "model.blocks" if spec.model != "mlp" else "[layer for layer in model if isinstance(layer, nn.Linear)]"
    return [
        f"mesh = init_device_mesh(device.type, ({spec.world_size},))",
        f"for part in [*{parts}, model]: fully_shard(part, mesh=mesh)",
    ]


def _steps(spec: TrainingSpec, rank: TrainingSpec, device: str) -> list[str]:
    """The steps of one rank, with its share of each batch; gradients are shared with a step's last micro-batch."""
    last = f"number == {spec.micro_batches - 1}"
    shares = {
        "ddp": f"model.require_backward_grad_sync = {last}  # as no_sync() does",
        "fsdp": f"model.set_requires_gradient_sync({last})",
    }[spec.parallel]
    found: list[str] = []
    for line in training_lines(rank, device):
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
