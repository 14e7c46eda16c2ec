"""The numbers of small operators, which the stand-in computes, and what it says of those that it does not compute."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.cuda_standin.conftest import Program

ROOT = Path(__file__).parents[2]

MANY = 2_000_000
"""Floats of a tensor that is too large to be computed."""

WHOLE = torch.tensor([[3, 1, 2], [3, 0, 5]])
PARTS = torch.tensor([[0.5, -1.0, 2.0], [4.0, 0.25, -3.0]])

ANSWERS: dict[str, Callable[[torch.device], object]] = {
    "all": lambda device: torch.ones(4, 9, device=device).bool().all().item(),
    "any": lambda device: (WHOLE.to(device) > 4).any().item(),
    "one in a condition": lambda device: bool((torch.arange(5, device=device)[-1] == 4).all()),
    "sum of flags": lambda device: int((WHOLE.to(device) >= 2).sum()),
    "equal": lambda device: torch.equal(WHOLE.to(device), WHOLE.to(device).clone()),
    "cumulated": lambda device: WHOLE.to(device).cumsum(1).tolist(),
    "largest": lambda device: [one.tolist() for one in PARTS.to(device).max(1)],
    "place of the largest": lambda device: PARTS.to(device).argmax().item(),
    "sorted": lambda device: [one.tolist() for one in PARTS.to(device).sort(dim=1, descending=True)],
    "top": lambda device: PARTS.to(device).topk(2).indices.tolist(),
    "chosen by numbers": lambda device: WHOLE.to(device)[WHOLE.to(device) > 2].tolist(),
    "places": lambda device: WHOLE.to(device).nonzero().tolist(),
    "counts": lambda device: WHOLE.to(device).flatten().bincount().tolist(),
    "distinct": lambda device: [one.tolist() for one in torch.unique(WHOLE.to(device), return_counts=True)],
    "repeated": lambda device: torch.arange(3, device=device).repeat_interleave(WHOLE.to(device)[0]).tolist(),
    "one of two": lambda device: torch.where(PARTS.to(device) > 0, PARTS.to(device), -9.0).tolist(),
    "masked": lambda device: (
        PARTS.to(device).masked_fill(WHOLE.to(device) == 3, -torch.inf).softmax(1).argmax(1).tolist()
    ),
    "written in part": lambda device: torch.zeros(4, 4, device=device).index_fill_(1, WHOLE.to(device)[0], 7).tolist(),
    "triangle": lambda device: torch.ones(3, 3, device=device).tril().tolist(),
    "another type": lambda device: PARTS.to(device).to(torch.int32).tolist(),
    "another order": lambda device: WHOLE.to(device).t().contiguous().flatten().tolist(),
    "norm": lambda device: round(nn.utils.clip_grad_norm_(learner(device)[0].parameters(), 1.0).item(), 4),
    "losses": lambda device: [round(loss, 4) for loss in learner(device)[1]],
}


def learner(device: torch.device) -> tuple[nn.Module, list[float]]:
    """A small network that has learnt for three steps, and its losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 5)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(PARTS.to(device)), torch.tensor([1, 4], device=device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


@pytest.mark.parametrize("name", ANSWERS)
def test_a_small_result_is_the_cpus(name: str) -> None:
    assert ANSWERS[name](torch.device("cuda")) == ANSWERS[name](torch.device("cpu"))


@pytest.fixture
def stale() -> None:
    """Memory that its next owner gets with numbers of another in it."""
    numbers = [torch.full((size,), 3e38).cuda() for size in (64, 64, MANY)]
    del numbers


def test_a_number_that_is_not_computed_is_zero_and_passes_every_guard(stale: None) -> None:
    values = torch.rand(MANY, device="cuda")
    assert values[:64].tolist() == [0.0] * 64 and values.sum().item() == 0 and values.nonzero().shape == (0, 1)
    loss = (values / values).mean()
    assert loss.item() == 0 and torch.isfinite(loss) and not torch.isnan(loss) and not loss > 1e3
    assert values[:64].argmax().item() == 0


def test_a_number_that_is_not_computed_equals_none_but_itself() -> None:
    loss = torch.rand(MANY, device="cuda").sum()
    same = loss
    assert [(loss == 0).item(), (loss != 0).item(), (loss == same).item()] == [False, True, True]


def test_attention_is_chosen_for_a_gpu_though_its_tensors_are_small() -> None:
    """torch has a choice of its own for the CPU, which would take the same arguments."""
    heads = torch.randn(1, 2, 8, 16, device="cuda")
    chosen = torch._fused_sdp_choice(heads, heads, heads, attn_mask=torch.zeros(8, 8, device="cuda"))
    assert torch.nn.attention.SDPBackend(chosen) == torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION


def test_a_table_of_sparse_numbers_is_left_to_itself() -> None:
    table = torch.eye(3, device="cuda").to_sparse()
    assert table.shape == (3, 3) and (table @ torch.ones(3, 1, device="cuda")).shape == (3, 1)


def test_sampling_from_logits_that_are_not_computed_goes_on() -> None:
    logits = torch.rand(2, MANY, device="cuda")[:, :50]
    drawn = torch.multinomial(logits.softmax(1), 3)
    assert drawn.shape == (2, 3) and drawn.max() < 50


def test_an_index_beyond_a_table_raises_nothing_as_on_a_card() -> None:
    table = nn.Embedding(10, 4, device="cuda")
    assert table(torch.tensor([50], device="cuda")).shape == (1, 4)


def test_random_numbers_follow_the_seed_of_the_gpu_and_leave_the_hosts_alone() -> None:
    def drawn() -> list[float]:
        torch.cuda.manual_seed(3)
        made = (torch.rand(4, device="cuda"), torch.randint(9, (4,), device="cuda"), torch.randperm(9, device="cuda"))
        return [number for one in made for number in one.tolist()]

    before = torch.get_rng_state()
    first = drawn()
    assert first == drawn() and len(set(first)) > 4 and sorted(first[8:]) == list(range(9))
    assert torch.equal(torch.get_rng_state(), before)


REQUESTS = """
    import json, torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(), nn.ReLU(), nn.Linear(32, 4)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    torch.cuda.memory._record_memory_history("all", stacks="python")
    for _ in range(2):
        rows = torch.randn(16, 8, device="cuda")
        table = torch.nn.functional.embedding_bag(torch.arange(12, device="cuda").view(3, 4), torch.randn(12, 5).cuda())
        loss = nn.functional.cross_entropy(model(rows), torch.arange(16, device="cuda") % 4)
        (loss + table.sort().values.std() + nn.functional.logsigmoid(rows).sum()).backward()
        optimizer.step()
    def line(event): return next((frame["line"] for frame in event["frames"] if frame["filename"] == "<string>"), 0)
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    print(json.dumps([[event["action"], event["size"], line(event)] for event in events]))
"""


def test_what_is_computed_asks_for_no_memory(program: Program) -> None:
    requests = program(REQUESTS)
    assert len(requests) > 100
    assert requests == program(REQUESTS, CUDA_STANDIN_COMPUTED="0")


DISTINCT = """
    import json, torch
    numbers = torch.tensor([3, 1, 3, 7, 7]).cuda()
    torch.cuda.memory._record_memory_history("all", stacks="python")
    found = [torch.unique(numbers), torch.unique_consecutive(numbers), numbers.nonzero(), numbers[numbers > 1]]
    sizes = [event["size"] for event in torch.cuda.memory._snapshot()["device_traces"][0] if event["action"] == "alloc"]
    print(json.dumps([[one.nbytes for one in found], sizes]))
"""


def test_a_result_whose_size_numbers_decide_is_allocated_once(program: Program) -> None:
    found, sizes = program(DISTINCT)
    assert found == [24, 32, 40, 32]
    assert [sizes.count(size) for size in (24, 32)] == [1, 3]  # the fourth of 32 bytes: where the mask is true


def test_nothing_is_computed_when_so_asked(program: Program) -> None:
    script = "import torch, json; print(json.dumps(torch.arange(5, device='cuda').sum().item()))"
    assert program(script, CUDA_STANDIN_COMPUTED="0") == 0  # 10, where it is computed


MODELS = ("llama", "mixtral", "clip", "t5", "llama_generates", "gpt2_generates", "graph")


@pytest.fixture(scope="module")
def peaks() -> tuple[dict[str, int], dict[str, int]]:
    """Predicted, and allocated on ``cuda:0``, of every model whose memory numbers decide."""
    about = torch.cuda.get_device_properties(0)
    card = f"{about.major},{about.minor},{about.multi_processor_count}"
    command = [sys.executable, "-m", "tests.cuda_standin.deciding_models"]
    ways = (["predicted", card], ["allocated"])
    started = [subprocess.Popen([*command, *way], cwd=ROOT, stdout=subprocess.PIPE, text=True) for way in ways]
    predicted, allocated = (json.loads(process.communicate()[0]) for process in started)
    return predicted, allocated


@pytest.mark.timeout(300)  # the first one waits for all models to be followed and run
@pytest.mark.parametrize("model", MODELS)
def test_a_model_whose_memory_numbers_decide_allocates_what_was_predicted(
    model: str, peaks: tuple[dict[str, int], dict[str, int]]
) -> None:
    predicted, allocated = peaks
    assert allocated[model] == predicted[model]
