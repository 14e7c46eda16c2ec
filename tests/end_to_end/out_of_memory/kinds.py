"""The programs, the cards on which they run out, and the cause that has to be found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpudash.units import MIB

FOLDER = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Kind:
    """One kind of out-of-memory.

    Attributes:
        name: of its program.
        what: went wrong, for the table.
        card_mib: of the simulated card, of which the context takes 300.
        cause: what the headline has to say.
        others_mib: that other processes hold of the card.
    """

    name: str
    what: str
    card_mib: int
    cause: str
    others_mib: int = 0

    @property
    def program(self) -> Path:
        """Its file."""
        return FOLDER / f"{self.name}.py"

    @property
    def card_bytes(self) -> int:
        """Of the card."""
        return self.card_mib * MIB


KINDS = (
    Kind(
        "losses_kept_in_a_list",
        "losses in a list with their graphs",
        640,
        r":15 .* keeps 2\d MiB alive per step, allocated at \S+:11 and 1 other line",
    ),
    Kind("losses_added_up", "losses added up with their graphs", 640, r":15 .* keeps 2\d MiB .* allocated at \S+:11"),
    Kind(
        "losses_summed_for_one_backward",
        "losses added up for one backward pass",
        576,
        r":23 adds up losses with their graphs: those of \d+ micro-batches, 2\d\d MiB, are kept until .*:26\.",
    ),
    Kind(
        "predictions_kept_by_a_method",
        "a method keeps what each step predicts",
        640,
        r":29 .* keeps 16 MiB alive per step, allocated at \S+:24 and 1 other line",
    ),
    Kind(
        "callbacks_with_tensors",
        "callbacks with tensors as defaults",
        512,
        r":22 .* keeps 8 MiB .* allocated at \S+:17",
    ),
    Kind(
        "models_kept_by_fold",
        "the model and the optimizer of every fold",
        640,
        r"5 models from .*:9 are on the GPU at a time: .*:24 .* keeps 281 MiB",
    ),
    Kind("models_kept_by_trial", "the model of every trial", 640, r"7 models from .* are on the GPU at a time: .*:26 "),
    Kind(
        "optimizers_kept_by_epoch",
        "an optimizer made anew in every epoch",
        640,
        r"9 optimizers' states from .*:15 are on the GPU at a time: .*:10 ",
    ),
    Kind(
        "few_large_steps", "outputs of a few large steps in a list", 900, r":16 .* keeps 64 MiB .* allocated at \S+:11"
    ),
    Kind(
        "features_kept_by_a_hook", "a hook keeps features", 480, r":12 .*, a hook, keeps \d+ MiB .* allocated at \S+:17"
    ),
    Kind(
        "hidden_state_carried_on",
        "a hidden state carried on with its graph",
        640,
        r":12 .* keeps? \d+ MiB alive per step",
    ),
    Kind("pieces_of_fixed_sizes", "free memory in pieces", 950, r"idle inside PyTorch but in pieces"),
    Kind("pieces_of_random_sizes", "free memory in pieces of any size", 800, r"idle inside PyTorch but in pieces"),
    Kind(
        "workspace_on_a_tiny_card",
        "no room for cuBLAS's workspace",
        306,
        r"9 MiB for the workspace of cuBLAS|the workspace of cuBLAS needs 9 MiB",
    ),
    Kind("capped_process", "a cap that the program sets", 1024, r"The cap of 154 MiB that capped_process.py:6 sets"),
    Kind("evaluation_with_graph", "an evaluation without no_grad", 1024, r"torch.no_grad\(\) is missing"),
    Kind(
        "evaluation_copied_before",
        "an evaluation without no_grad that copies its inputs on a line of their own",
        720,
        r"forward passes at .*:15 keep their graph",
    ),
    Kind(
        "validation_within_an_epoch",
        "a validation without no_grad amid an epoch",
        768,
        r"forward passes at .*:19 keep their graph",
    ),
    Kind(
        "distilled_from_a_teacher",
        "a teacher's forward pass without no_grad",
        520,
        r"The forward pass of teacher at \S+:32 keeps its graph, 176 MiB, and no optimizer has its weights",
    ),
    Kind(
        "state_of_the_optimizer", "the optimizer's first step", 768, r"The first step of AdamW makes its state: 256 MiB"
    ),
    Kind("cache_of_keys_and_values", "the KV cache", 1024, r"The KV cache of \d+ tokens takes"),
    Kind("cache_grown_by_cat", "keys and values made longer by torch.cat", 1024, r"The KV cache of \d+ tokens takes"),
    Kind("batch_too_large", "a batch too large for the first step", 640, r"One step's activations are too many"),
    Kind(
        "batch_beside_the_state",
        "a batch that is small beside the optimizer's state",
        752,
        r"Weights, gradients and the optimizer's state take 39\d MiB, and leave too little for one step",
    ),
    Kind("batch_in_a_dictionary", "a batch too large, of a dictionary", 512, r"One step's activations are too many"),
    Kind(
        "generator_and_discriminator",
        "a GAN for which no single change is enough",
        338,
        r"The context takes 300 of 338 MiB; most of the rest was workspace",
    ),
    Kind(
        "batch_and_optimizer",
        "a batch and an optimizer's copies that are too large, both",
        380,
        r"One step's activations are too many",
    ),
    Kind(
        "sequences_that_grow",
        "sequences that grow from step to step",
        520,
        r"The inputs grow: ids at \S+:32 is \[8, \d+\] in step 1 and \[8, \d+\] in step \d+, and every step needs more",
    ),
    Kind("deep_network", "activations of a deep network", 1024, r"One step's activations are too many"),
    Kind("dataset_on_the_card", "the whole data set on the card", 640, r"The whole data set is on the GPU"),
    Kind(
        "batches_ahead",
        "a prefetcher with too many batches ahead",
        490,
        r"18 batches that \S+:21 copies to the GPU ahead of their steps take 144 MiB",
    ),
    Kind(
        "batches_in_a_list",
        "all batches in a list on the card",
        480,
        r"16 batches that \S+:12 keeps on the GPU take 128 MiB",
    ),
    Kind(
        "checkpoint_loaded_on_the_card", "a checkpoint beside its model", 576, r"The checkpoint that .* takes 112 MiB"
    ),
    Kind("retry_while_handling", "a second try in the except block", 640, r"still held by its exception"),
    Kind(
        "errors_kept_by_batch",
        "errors of earlier tries in a dictionary",
        560,
        r":30 \(self.errors\[batch\] = error\) keeps 192 MiB of earlier tries",
    ),
    Kind("scores_of_attention", "all scores of attention at once", 1024, r"makes all of its scores at once: 1.00 GiB"),
    Kind("copy_of_the_model", "a copy of the model", 640, r"A copy of the model, made at"),
    Kind(
        "average_by_a_copy", "an average of the weights in a copy", 832, r"A copy of the model, made at .*:14, takes 96"
    ),
    Kind(
        "bank_joined_batch_by_batch",
        "a bank of features made longer by torch.cat, and searched",
        480,
        r":23 makes bank longer in every round of its loop, and has it twice meanwhile",
    ),
    Kind("copies_kept_by_epoch", "a copy of the weights of every epoch", 640, r"\d copies of the model, made at .*:18"),
    Kind(
        "child_on_the_card", "a process that the program started", 1200, r"A process that this program started, python"
    ),
    Kind("other_process", "somebody else's process", 1024, r"holds 500 MiB|holds 0.49 of 1.00 GiB", others_mib=500),
    Kind("no_room_for_the_context", "no room for the context", 1024, r"holds 0.78 of 1.00 GiB", others_mib=800),
)
