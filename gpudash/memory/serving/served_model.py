"""The layers of a model by its ``config.json``, as a server needs them: matrices and kinds of attention.

Field names are those of Hugging Face's configs; if families use several names for one field, all are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpudash.memory.quantisation import shown
from gpudash.memory.serving.defaults import completed

Config = Mapping[str, Any]

Split = Literal["columns", "rows", "vocabulary", "whole"]
"""How tensor-parallel ranks split a matrix: by its outputs, its inputs, padded vocabulary rows, or not at all."""

FULL, SLIDING, CHUNKED, STATE = "full", "sliding", "chunked", "state"
"""Kinds of layer by what they keep of a request: every token, a window, a chunk, or a state of constant size."""

_KINDS = {
    "full_attention": (FULL,),
    "attention": (FULL,),
    "sliding_attention": (SLIDING,),
    "chunked_attention": (CHUNKED,),
    "linear_attention": (STATE,),
    "mamba": (STATE,),
    "conv": (STATE,),
    "deepseek_sparse_attention": (FULL,),
    "moe": (),
    "mlp": (),
}
"""What a layer keeps, by its name in configs."""

_KINDS_OF_FAMILY = {
    "zamba": {"hybrid": (FULL, STATE)},
    "zamba2": {"hybrid": (FULL, STATE)},
}
"""Names with another meaning in these families."""

DTYPES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
"""Bytes of a number, by the dtype's name in ``--dtype`` and configs."""

MOST_LAYERS = 4096
MOST_NAME = 60

MOST = 2**40
"""Larger numbers cannot be the size of a model."""

PLAIN_MLP = frozenset({"phi", "gpt_neox", "opt", "starcoder2"})
"""Families whose MLP has two matrices; in others it also has a gate, so three."""

MAMBA = frozenset({"mamba", "falcon_mamba"})
"""Families that consist of Mamba 1 layers, whose state is as wide as the inner layer."""

STATES_ONLY = MAMBA | {"mamba2"}
"""Families without attention."""

MAMBA_BETWEEN = frozenset({"jamba", "zamba"})
"""Families that mix Mamba 1 layers with others."""

BOTH = frozenset({"falcon_h1"})
"""Families that run attention and Mamba on the same tokens in parallel in each layer."""

SHORT_CONVOLUTIONS = frozenset({"lfm2", "lfm2_moe"})
"""Families whose state is only the last inputs of a convolution."""

LIGHTNING = frozenset({"minimax", "minimax_text_01", "minimax_m1"})
"""Families whose state is the running sum of lightning attention, without a convolution."""

KIMI_DELTA = frozenset({"kimi_linear"})
"""Families with Kimi's delta attention, whose states are in float32."""

TWICE = frozenset({"longcat_flash"})
"""Families with two attentions in sequence in each layer."""

ENCODERS = frozenset({
    "albert", "bert", "big_bird", "camembert", "convbert", "data2vec-text", "deberta", "deberta-v2", "distilbert",
    "electra", "ernie", "esm", "eurobert", "funnel", "ibert", "layoutlm", "layoutlmv3", "lilt", "longformer", "luke",
    "megatron-bert", "mobilebert", "modernbert", "mpnet", "mra", "nomic_bert", "nystromformer", "rembert", "roberta",
    "roberta-prelayernorm", "roc_bert", "roformer", "squeezebert", "xlm-roberta", "xlm-roberta-xl", "xmod", "yoso",
})  # fmt: skip
"""Families that encode a text as a whole and generate none."""

KNOWN = frozenset({
    *PLAIN_MLP, "gemma", "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2", "opt", "exaone4", "minimax_m2",
    "qwen3_vl_text", "qwen3_vl_moe_text", "llama", "mistral", "mistral3", "mixtral",
    "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl",
    "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "phi3", "granite",
    "granitemoe", "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_vl", "gpt_oss", "llama4", "llama4_text", "llava_next",
    "olmo", "olmo2", "stablelm", "glm4", "glm4_moe", "internlm2", "smollm3", "seed_oss",
})  # fmt: skip
"""Families whose matrices are derived from their config here."""

TOWERS = frozenset({
    "exaone4_5", "gemma3", "idefics3", "janus", "kimi_k25", "kimi_vl", "llama4", "llava", "llava_next",
    "llava_next_video", "llava_onevision", "mistral3", "paligemma", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe",
    "qwen3_vl", "qwen3_vl_moe", "shieldgemma2", "smolvlm", "video_llama_3",
})  # fmt: skip
"""Models that combine a vision part with one of those families, and whose vision matrices are derived too."""


def whole(config: Config, *names: str) -> int | None:
    """The first of these fields with a value other than 0.

    Raises:
        ValueError: the value is not a whole number.
    """
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
            raise ValueError(f"config.json: {name} is {shown(value)}, which is no number of anything.")
        if value:
            return value
    return None


def part(config: Config, name: str) -> Config:
    """An object inside a config; empty if it is missing.

    Raises:
        ValueError: something else is there.
    """
    value = config.get(name) or {}
    if not isinstance(value, Mapping):
        raise ValueError(f"config.json: {name} is {shown(value)}, which is no object.")
    return value


def share(config: Config, name: str, otherwise: float) -> float:
    """A positive number of a config.

    Raises:
        ValueError: it is not positive or not a number.
    """
    value = config.get(name)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST:
        raise ValueError(f"config.json: {name} is {shown(value)}, which is no number above 0.")
    return float(value)


@dataclass(frozen=True)
class Matrix:
    """A weight tensor as the server allocates it: one matrix, or `count` equal ones in a single allocation.

    Attributes:
        name: its place in the model, as quantisation patterns name it.
        inputs, outputs: dimensions of one matrix.
        split: how ranks split it.
        count: how many matrices it holds, such as gate and up projection, times experts.
        quantisable: whether quantisation applies to it; embeddings and routers stay as they are.
        copied: outputs for keys and values, which are copied to the ranks beyond the number of their heads.
    """

    name: str
    inputs: int
    outputs: int
    split: Split = "columns"
    count: int = 1
    quantisable: bool = True
    copied: int = 0


class ServedModel:
    """A model described by its config.

    Args:
        config: the whole ``config.json``.
        built: its matrices, for a family whose matrices are not derived from the config here.

    Raises:
        ValueError: in one sentence, if a field is missing or invalid.
    """

    def __init__(self, config: Config, built: Sequence[Matrix] = ()) -> None:
        self._built = tuple(built)
        self._given = config
        config = completed(config)
        self.whole: Config = config
        self.text: Config = part(config, "text_config") or part(config, "llm_config") or config
        self.family = str(self.text.get("model_type") or config.get("model_type") or "")[:MOST_NAME]
        if self.family in ENCODERS:
            raise ValueError(
                f"{self.family} is an encoder: it generates nothing, and a server keeps no KV cache of it; --task "
                "infer predicts a batch of it."
            )
        if config.get("is_encoder_decoder") is True:
            raise ValueError(
                f"{self.family} encodes and decodes, and what a server keeps of that is not known here; --task infer "
                "predicts a batch of it."
            )
        kinds = self._kinds_by_name()
        # Nemotron's largest lists its layers, but not their number.
        self.layers = self._optional("num_hidden_layers", "n_layer", "num_layers", "n_layers") or len(kinds)
        if not self.layers:
            self._number("num_hidden_layers")
        self.hidden = self._number("hidden_size", "n_embd", "d_model")
        if self.family in STATES_ONLY:
            self.heads = self._optional("num_heads") or 1
        else:
            self.heads = self._number("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
        of_attention = part(self.text, "attn_config")
        self.kv_heads = (
            self._optional("num_key_value_heads", "num_kv_heads") or whole(of_attention, "kv_n_heads") or self.heads
        )
        self.head_dim = self._optional("head_dim", "attention_head_dim") or self.hidden // self.heads
        if not self.head_dim:
            raise ValueError("config.json: a head has keys of 0 numbers, with more heads than hidden_size.")
        self.vocabulary = self._number("vocab_size")
        self.latent = self._optional("kv_lora_rank")
        if self.text.get("use_sliding_window", True):
            self.window = self._optional("sliding_window")
        else:
            self.window = None
        self.chunk = self._optional("attention_chunk_size")
        self.longest = self._optional("max_position_embeddings", "n_positions", "max_seq_len")
        self.kinds = [kind for of_layer in kinds or self._kinds() for kind in of_layer]
        if shared := self._optional("num_kv_shared_layers"):
            self.kinds = self.kinds[:-shared]
        if not self.kinds:
            raise ValueError("config.json: none of the layers keeps anything of a request, so there is no KV cache.")

    def _optional(self, *names: str) -> int | None:
        return whole(self.text, *names)

    def _number(self, *names: str) -> int:
        value = self._optional(*names)
        if value is None:
            raise ValueError(
                f"config.json does not say {names[0]}, which a language model has; --task infer predicts other models."
            )
        return value

    def _kinds_by_name(self) -> list[tuple[str, ...]]:
        """What each layer keeps, if the config names its kind: nothing, or one or several things; otherwise empty."""
        names = ("layer_types", "layers_block_type", "block_types")
        types = next((self.text[name] for name in names if self.text.get(name)), None)
        if isinstance(types, list):
            if len(types) > MOST_LAYERS:
                raise ValueError(f"config.json: {len(types):,} layers are more than any model has.")
            known = {**_KINDS, **_KINDS_OF_FAMILY.get(self.family, {})}
            if self._optional("kv_lora_rank"):
                known["indexed_attention"] = (FULL,)  # transformers 5 and later call DeepSeek V3.2's attention so
            strange = sorted(set(map(str, types)) - known.keys())
            if strange:
                raise ValueError(f"config.json: layers of the kind {shown(strange[0])} are not known here.")
            return [known[kind] for kind in types]
        if isinstance(pattern := self.text.get("hybrid_override_pattern"), str):
            return [{"M": (STATE,), "*": (FULL,)}.get(mark, ()) for mark in pattern]
        return []

    def _kinds(self) -> list[tuple[str, ...]]:
        """What each layer keeps, if the config describes all layers at once."""
        places = range(self.layers)
        if self.family in STATES_ONLY:
            return [(STATE,)] * self.layers
        if self.family in BOTH:
            return [(FULL, STATE)] * self.layers
        if self.family in TWICE:
            return [(FULL, FULL)] * self.layers
        attending = self._attending()
        if attending is not None:
            return [(FULL,) if place in attending else (STATE,) for place in places]
        if self.chunk:
            return [(FULL,) if (place + 1) % 4 == 0 else (CHUNKED,) for place in places]
        pattern = self.text.get("sliding_window_pattern")
        if isinstance(pattern, str) and pattern:
            return [(FULL,) if pattern[place % len(pattern)] == "G" else (SLIDING,) for place in places]
        if not self.window:
            return [(FULL,)] * self.layers
        if step := self._optional("sliding_window_pattern", "_sliding_window_pattern"):
            return [(FULL,) if (place + 1) % step == 0 else (SLIDING,) for place in places]
        return [(SLIDING,)] * self.layers

    def _attending(self) -> Collection[int] | None:
        """The layers with attention, for a model whose other layers keep a state; ``None`` for others.

        Bamba, Granite 4 and LFM2 list them, Jamba and Qwen3-Next give an interval, Kimi Linear lists them from 1, and
        MiniMax has a flag for each.
        """
        if interval := self._optional("full_attention_interval"):
            return range(interval - 1, self.layers, interval)
        if period := self._optional("attn_layer_period"):
            return range(self._optional("attn_layer_offset") or 0, self.layers, period)
        for listed, first in (
            (self.text.get("attn_layer_indices"), 0),
            (self.text.get("full_attn_idxs"), 0),
            (part(self.text, "linear_attn_config").get("full_attn_layers"), 1),
        ):
            if isinstance(listed, list):
                return {place - first for place in listed if isinstance(place, int)}
        marks = self.text.get("attn_type_list")
        if isinstance(marks, list):
            return {place for place, mark in enumerate(marks) if mark == 1}
        if self.family in ("bamba", "granitemoehybrid"):
            return ()
        return None

    def kv_shape(self, kind: str) -> tuple[int, int]:
        """Number of key heads in a layer of this kind, and the width of each."""
        if kind == FULL and (width := self._optional("global_head_dim")):
            return self._optional("num_global_key_value_heads") or self.kv_heads, width
        return self.kv_heads, self.head_dim

    @property
    def rotary_head(self) -> int:
        """How many numbers of a latent token carry its position."""
        return self._number("qk_rope_head_dim")

    @property
    def indexed(self) -> bool:
        """Whether a lightning indexer selects the tokens to attend to, as since DeepSeek V3.2."""
        return self._optional("index_topk") is not None

    @property
    def dtype_bytes(self) -> int:
        """Bytes of a number; a server loads a float32 model in half precision by default."""
        name = self.text.get("dtype") or self.text.get("torch_dtype") or self.whole.get("torch_dtype")
        if name is None or DTYPES.get(str(name), 2) == 4:
            return 2
        return DTYPES.get(str(name), 2)

    @property
    def experts(self) -> int:
        """Experts in a layer that has any, 0 for a dense model."""
        return self._optional("num_local_experts", "num_experts", "n_routed_experts") or 0

    @property
    def experts_of_a_token(self) -> int:
        return self._optional("num_experts_per_tok", "num_experts_per_token", "moe_topk") or 1

    @property
    def expert_width(self) -> int:
        return self._optional("moe_intermediate_size", "intermediate_size") or 0

    @property
    def width(self) -> int:
        """Width of the MLP of a dense layer."""
        several = self.text.get("intermediate_size")
        if isinstance(several, list):  # Gemma 3n has one per layer
            return max((whole({"intermediate_size": one}, "intermediate_size") or 0 for one in several), default=0)
        return self._optional("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim") or 4 * self.hidden

    def is_sparse(self, layer: int) -> bool:
        """Whether the MLP of a layer consists of experts."""
        if not self.experts or layer < (self._optional("first_k_dense_replace") or 0):
            return False
        dense = self.text.get("mlp_only_layers")
        if isinstance(dense, list) and layer in dense:
            return False
        step = self._optional("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
        return (layer + 1) % step == 0

    @property
    def tied(self) -> bool:
        # A value that the config gives anywhere takes precedence over a default.
        given = part(self._given, "text_config") or part(self._given, "llm_config")
        stated = (place.get("tie_word_embeddings") for place in (given, self._given, self.text))
        return bool(next((tied for tied in stated if tied is not None), False))

    def rotary_bytes(self, dtype_bytes: int) -> int:
        """The table of cosines and sines that each rank keeps, for as many positions as the model supports."""
        of_a_head = self.head_dim * share(self.text, "partial_rotary_factor", 1.0)
        rotary = self._optional("qk_rope_head_dim") or int(of_a_head)
        scaling, tables = part(self.text, "rope_scaling") or part(self.text, "rope_parameters"), 1.0
        scaling = part(scaling, "full_attention") or scaling  # transformers 5 has one per kind of layer
        if "linear" in (scaling.get("rope_type"), scaling.get("type")):
            tables = share(scaling, "factor", 1.0)
        if self.family.startswith("gemma3"):
            tables += 1  # layers with a window have their own
        return round((self.longest or 0) * rotary * dtype_bytes * tables)

    @property
    def is_known(self) -> bool:
        """Whether its matrices are derived from its config here, including those of vision and audio."""
        multimodal = self.text is not self.whole and ("vision_config" in self.whole or "audio_config" in self.whole)
        if multimodal and str(self.whole.get("model_type")) not in TOWERS:
            return False
        return self.family in KNOWN

    @property
    def positions(self) -> int | None:
        """Tokens in the longest request that vLLM accepts for the model: its positions, extended if its config says so
        (``_get_and_verify_max_len``); ``None`` if unknown."""
        if self.longest is None:
            return None
        scaling = part(self.text, "rope_scaling")
        kind = scaling.get("rope_type") or scaling.get("type")
        if kind not in ("linear", "dynamic", "yarn"):
            return self.longest
        original = whole(scaling, "original_max_position_embeddings") or self.longest
        return max(self.longest, int(original * share(scaling, "factor", 1.0)))

    def matrices(self) -> Iterator[Matrix]:
        """All matrices of the model.

        Raises:
            ValueError: the layers of the family are unknown here, and no matrices were given.
        """
        if self._built:
            yield from self._built
            return
        if not self.is_known:
            raise ValueError(
                f"How many weights a {self.family or 'model without model_type'} has does not follow from its config "
                "here; with its safetensors files or their index beside config.json it does."
            )
        yield Matrix("model.embed_tokens", self.hidden, self.vocabulary, "vocabulary", quantisable=False)
        if self.family == "opt":
            yield Matrix("model.embed_positions", self.hidden, (self.longest or 0) + 2, "whole", quantisable=False)
        if not self.tied:
            yield Matrix("lm_head", self.hidden, self.vocabulary, "vocabulary", quantisable=False)
        kinds = iter(self.kinds)
        for layer in range(self.layers):
            at = f"model.layers.{layer}"
            yield from self._attention(next(kinds, FULL), at)
            yield from self._mlp(layer, at)
        yield from self._tower()

    def _attention(self, kind: str, at: str) -> Iterator[Matrix]:
        hidden = self.hidden
        if kind == STATE:
            keys, values = self.state_widths()
            yield Matrix(f"{at}.linear_attn.in_proj", hidden, 2 * keys + 2 * values)
            yield Matrix(f"{at}.linear_attn.out_proj", values, hidden, "rows")
        elif self.latent:
            yield from self._latent_attention(f"{at}.self_attn", self.latent)
        else:
            gate = 1
            if self.text.get("attn_output_gate", self.family.startswith(("qwen3_5", "qwen3_next"))):
                gate = 2
            queries, keys = gate * self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
            yield Matrix(f"{at}.self_attn.qkv_proj", hidden, queries + keys, copied=keys)
            yield Matrix(f"{at}.self_attn.o_proj", self.heads * self.head_dim, hidden, "rows")

    def _latent_attention(self, at: str, latent: int) -> Iterator[Matrix]:
        """DeepSeek's attention. Queries have their own latent in some models. The server keeps ``kv_b`` twice, once
        absorbed into the queries and the output (vLLM's ``W_UK_T`` and ``W_UV``)."""
        rotary = self._number("qk_rope_head_dim")
        without, value = self._number("qk_nope_head_dim"), self._number("v_head_dim")
        queries = self.heads * (without + rotary)
        if through := self._optional("q_lora_rank"):
            yield Matrix(f"{at}.q_a_proj", self.hidden, through, "whole")
            yield Matrix(f"{at}.q_b_proj", through, queries)
        else:
            yield Matrix(f"{at}.q_proj", self.hidden, queries)
        yield Matrix(f"{at}.kv_a_proj_with_mqa", self.hidden, latent + rotary, "whole")
        yield Matrix(f"{at}.kv_b_proj", latent, self.heads * (without + value))
        yield Matrix(f"{at}.absorbed", latent, self.heads * (without + value), quantisable=False)
        yield Matrix(f"{at}.o_proj", self.heads * value, self.hidden, "rows")

    def _mlp(self, layer: int, at: str) -> Iterator[Matrix]:
        def mlp(name: str, width: int, count: int = 1) -> Iterator[Matrix]:
            into = 2
            if self.family in PLAIN_MLP:
                into = 1
            yield Matrix(f"{at}.mlp.{name}up_proj", self.hidden, width, "columns", into * count)
            yield Matrix(f"{at}.mlp.{name}down_proj", width, self.hidden, "rows", count)

        if not self.is_sparse(layer):
            yield from mlp("", self.width)
            return
        yield Matrix(f"{at}.mlp.router", self.hidden, self.experts, "whole", quantisable=False)
        yield from mlp("experts.", self.expert_width, self.experts)
        shared = self._optional("shared_expert_intermediate_size") or (
            self.expert_width if self.family.startswith("llama4") else 0
        )
        if many := self._optional("n_shared_experts"):
            shared = many * self.expert_width
        if shared:
            yield from mlp("shared_expert.", shared)

    def _tower(self) -> Iterator[Matrix]:
        """The vision part: a vision transformer, and the projector to the text model."""
        vision = part(self.whole, "vision_config")
        width = whole(vision, "embed_dim", "hidden_size")
        if width is None:
            return
        inner = whole(vision, "intermediate_size") or 4 * width
        depth = whole(vision, "num_hidden_layers", "depth") or 0
        gated = 2
        # The first configs of Qwen2.5-VL do not name the type of their vision part.
        if str(vision.get("model_type") or self.whole.get("model_type")) in ("pixtral", "qwen2_5_vl"):
            gated = 3
        patch = whole(vision, "patch_size") or 14
        for layer in range(depth):
            at = f"vision_tower.layers.{layer}"
            yield Matrix(f"{at}.attention.qkv_proj", width, width, "columns", 3)
            yield Matrix(f"{at}.attention.out_proj", width, width, "rows")
            yield Matrix(f"{at}.mlp", width, inner, "columns", gated)
        frames = whole(vision, "temporal_patch_size") or 1
        yield Matrix("vision_tower.patches", 3 * frames * patch * patch, width, "whole", quantisable=False)
        positions = whole(vision, "num_position_embeddings") or ((whole(vision, "image_size") or 0) // patch) ** 2
        yield Matrix("vision_tower.positions", positions, width, "whole")
        if "merge_kernel_size" in vision:
            merge = 4
        else:
            merge = (whole(self.whole, "spatial_merge_size") or whole(vision, "spatial_merge_size") or 1) ** 2
        merged = whole(vision, "vision_output_dim") or width * merge
        # Qwen3-VL has one more projector for each vision layer that feeds into the text layers.
        deeper = vision.get("deepstack_visual_indexes")
        joins = 1
        if isinstance(deeper, list):
            joins += len(deeper)
        if merge > 1:
            yield Matrix("multi_modal_projector.merging", merged, merged, "whole", joins)
        yield Matrix("multi_modal_projector.linear", merged, self.hidden, "whole", joins)
        if str(self.whole.get("model_type")).startswith("llava"):
            yield Matrix("multi_modal_projector.linear_2", self.hidden, self.hidden, "whole")

    def state_widths(self) -> tuple[int, int]:
        """Width of the keys and of the values in a layer with a state: gated delta nets, Kimi's, and Mamba 2."""
        if key_heads := self._optional("linear_num_key_heads"):
            keys = key_heads * self._number("linear_key_head_dim")
            return keys, self._number("linear_num_value_heads") * self._number("linear_value_head_dim")
        if self.family in KIMI_DELTA:
            width = self._kimi("num_heads", "linear_num_heads") * self._kimi("head_dim", "linear_head_dim")
            return width, width
        if self.family == "mamba2":
            inner = self.heads * self.head_dim
        else:
            inner = self._mamba_heads()
        groups = self._optional("mamba_n_groups", "n_groups", "mamba_ngroups") or 1
        return groups * self._number("mamba_d_state", "ssm_state_size", "state_size"), inner

    def _kimi(self, name: str, later: str) -> int:
        """A size of Kimi's delta attention, which transformers 5 names differently from the first configs."""
        size = whole(part(self.text, "linear_attn_config"), name) or self._optional(later)
        if size is None:
            raise ValueError(f"config.json does not say {name} of linear_attn_config, which its layers have.")
        return size

    def _mamba_heads(self) -> int:
        """Width of Mamba 2's inner layer: number of heads times their width."""
        heads = self._optional("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
        if heads is None:
            raise ValueError(
                f"What a layer without attention of a {self.family} keeps does not follow from its config here, and "
                "so not how many requests are served."
            )
        for name in ("mamba_d_head", "mamba_head_dim", "mamba_headdim"):
            if self.text.get(name) not in (None, "auto"):
                return heads * self._number(name)
        return (self._optional("mamba_expand") or 2) * self.hidden

    def state_bytes(self, ranks: int, dtype_bytes: int) -> int:
        """What such a layer keeps of a request on each rank: the last inputs of its convolution, and its state.

        As in vLLM's ``MambaStateShapeCalculator``; the state's dtype is the config's ``mamba_ssm_dtype``, or the
        model's.
        """
        if self.family in LIGHTNING:
            return self.heads // ranks * self.head_dim**2 * dtype_bytes
        kernel = self._kernel()
        if self.family in SHORT_CONVOLUTIONS:
            return (self._optional("conv_dim") or self.hidden) // ranks * (kernel - 1) * dtype_bytes
        if self.family in MAMBA:
            inner = self._optional("intermediate_size", "d_inner") or (self._optional("expand") or 2) * self.hidden
            return inner // ranks * (kernel - 1 + self._number("state_size")) * dtype_bytes
        if self.family in MAMBA_BETWEEN:
            inner = (self._optional("mamba_expand") or 2) * self.hidden
            return inner // ranks * (kernel - 1 + self._number("mamba_d_state")) * dtype_bytes
        keys, values = self.state_widths()
        per_value = self._optional("linear_key_head_dim", "mamba_d_state", "ssm_state_size", "state_size")
        if self.family in KIMI_DELTA:
            per_value = self._kimi("head_dim", "linear_head_dim")
        groups = self._optional("mamba_n_groups", "n_groups", "mamba_ngroups")
        if groups and groups % ranks:
            keys += (ranks - groups) * (per_value or 0)  # each rank has the whole group that its heads share
        convolution = (2 * keys + values) // ranks * (kernel - 1) * dtype_bytes
        return convolution + values // ranks * (per_value or 0) * self._state_number(dtype_bytes)

    def _kernel(self) -> int:
        """Number of inputs that the convolution spans."""
        own = whole(part(self.text, "linear_attn_config"), "short_conv_kernel_size")
        return own or self._optional("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel", "conv_L_cache") or 4

    def _state_number(self, dtype_bytes: int) -> int:
        """Bytes of a number in the state."""
        if self.family in KIMI_DELTA:
            return 4
        own = self.text.get("mamba_ssm_dtype")
        if own:
            return DTYPES.get(str(own), dtype_bytes)
        return dtype_bytes
