"""A tiny random model of every causal language model family of the installed transformers.

A family's own default configuration is made small by rules on what its numbers mean. Only numbers
whose names say nothing, or that must fit one another in a family's own way, are named by family.
"""

import copy

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

LAYERS, HEADS, HEAD_DIM, HIDDEN, VOCABULARY, EXPERTS, WINDOW = 4, 4, 16, 64, 340, 4, 24
LARGEST = 30_000_000   # parameters; above, a rule did not reach what it should

# Names of numbers, in the order in which the first that is part of a name decides.
RULES = (
    (("mamba_d_ssm",), 2 * HIDDEN),
    (("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 8),
    (("mamba_d_head", "mamba_head_dim", "mamba_headdim"), HEAD_DIM),
    (("attn_layer_period", "expert_layer_period"), 2),
    (("attn_layer_offset", "expert_layer_offset"), 1),
    (("rotary_dim", "qk_rope_head_dim"), 8),
    (("qk_head_dim",), HEAD_DIM + 8),
    (("vocab_size", "n_vocab", "vocab_size_per_layer_input"), VOCABULARY),
    (("max_position_embeddings", "n_positions", "original_max"), None),
    (("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers",
      "num_decoder_layers", "num_encoder_layers", "depth", "num_blocks"), LAYERS),
    (("head_dim", "d_kv", "kv_channels", "attention_head_size", "v_head_dim"), HEAD_DIM),
    (("num_experts_per_tok", "moe_topk", "num_experts_per_token", "top_k_experts", "moe_k",
      "num_selected_experts", "topk_group", "n_group", "experts_top_k"), "least:2"),
    (("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "n_experts",
      "num_routed_experts"), EXPERTS),
    (("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1),
    (("sliding_window", "window_size", "attention_window", "local_attention", "attention_chunk_size"), "window"),
    (("q_lora_rank", "kv_lora_rank", "lora_rank"), 32),
    (("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim", "width", "embed_dim"), HIDDEN),
    (("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size", "d_inner"), 96),
)  # fmt: skip

TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
# Numbers that a default configuration leaves open.
UNSAID = {"num_key_value_heads": HEADS, "head_dim": HEAD_DIM, "num_experts_per_tok": 2,
          "n_routed_experts": EXPERTS, "n_shared_experts": 1}
BY_FAMILY = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "zamba": {"layers_block_type": ["mamba", "hybrid"] * 2, "attention_head_dim": 32,
              "attention_hidden_size": 128, "n_mamba_heads": 2, "mamba_dt_rank": 4},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2, "hybrid_layer_ids": [1, 3],
               "attention_head_dim": 32, "attention_hidden_size": 128},
    "gemma3n_text": {"layer_types": ["sliding_attention", "full_attention"] * 2,
                     "num_kv_shared_layers": 2, "intermediate_size": [96] * 4,
                     "activation_sparsity_pattern": [0.0] * 4, "hidden_size_per_layer_input": 8},
    "xmod": {"default_language": "en_XX"},
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0},
    "reformer": {"axial_pos_embds": False},
}


def families() -> list[str]:
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _heads(config, name: str, value: int) -> int:
    """Query heads become 4; KV heads stay one, as many, or become half as many."""
    if not any(part in name for part in ("key_value", "kv_heads", "n_head_kv", "num_kv")):
        return HEADS
    if hasattr(config, "qk_rope_head_dim"):
        return HEADS   # latent attention unpacks a key for every query head
    return 1 if value == 1 else 2


def _small(name: str, value, config):
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return value
    if name == "num_heads" and hasattr(config, "state_size"):
        return 2 * HIDDEN // HEAD_DIM
    if "head" in name and not any(part in name for part in ("dim", "size", "mamba")):
        return _heads(config, name, value)
    if name == "head_dim" and hasattr(config, "qk_rope_head_dim"):
        return 8   # latent attention means the rotated part
    for names, size in RULES:
        if any(name == one or name.endswith("_" + one) for one in names):
            if size is None:
                return value
            if size == "window":   # where all layers have one, none is shorter than the text
                kinds = getattr(config, "layer_types", None) or ()
                return WINDOW if any("full" in str(one) for one in kinds) else 4 * WINDOW
            if isinstance(size, str):
                return min(value, int(size.partition(":")[2]))
            return size
    return value


def _shorten(values: list) -> list:
    """LAYERS of a list with one word a layer, in their order, every kind of them at least once."""
    kinds = list(dict.fromkeys(values))
    if len(kinds) >= LAYERS:
        return kinds[:LAYERS]
    first = values[:LAYERS]
    missing = [kind for kind in kinds if kind not in first]
    return first[: LAYERS - len(missing)] + missing


def shrink(config, depth=0):
    """Makes a configuration small in its place."""
    layers = next((getattr(config, n) for n in ("num_hidden_layers", "n_layer", "num_layers", "decoder_layers")
                   if isinstance(getattr(config, n, None), int)), None)
    for name, value in list(config.__dict__.items()):
        if name.startswith("_"):
            continue
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            shrink(value, depth + 1)
        elif isinstance(value, list) and layers and len(value) == layers and layers > LAYERS:
            setattr(config, name, _shorten(value))
        elif value is None and name in UNSAID:
            setattr(config, name, UNSAID[name])
        elif isinstance(value, float) and "multiplier" in name and value == 1:
            setattr(config, name, 0.7)   # neutral by default, not in any model of the family
        elif isinstance(value, int):
            try:
                setattr(config, name, _small(name, value, config))
            except Exception:  # noqa: BLE001 a property that follows from others
                pass
    if getattr(config, "is_decoder", True) is False and not depth:
        config.is_decoder = True
    for name in TOKENS:
        if getattr(config, name, None) is not None:
            setattr(config, name, TOKENS.index(name))
    return config


def config_of(family: str):
    config = shrink(CONFIG_MAPPING[family]())
    for name, value in BY_FAMILY.get(family, {}).items():
        target = config
        *path, last = name.split(".")
        for one in path:
            target = getattr(target, one)
        if last != "layer_types" or not getattr(target, last) or "num_kv_shared" in str(
                BY_FAMILY[family]):
            setattr(target, last, value)
    return config


def randomise(model) -> None:
    """Sizes at which attention is far from uniform, and no norm, gate or bias is neutral."""
    torch.manual_seed(7)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if not parameter.is_floating_point():
                continue
            if "A_log" in name or name.endswith(("dt_bias", ".D")):
                continue
            if "norm" in name or "ln_" in name:
                parameter.normal_(1.0 if "weight" in name else 0.0, 0.2)
            elif parameter.ndim <= 1:
                parameter.normal_(0.0, 0.3)
            elif "q_proj" in name or "k_proj" in name:
                parameter.normal_(0.0, 1.6 * parameter.shape[-1] ** -0.5)
            else:
                parameter.normal_(0.0, max(parameter.shape[-1], 1) ** -0.5)


def build(family: str):
    """The tiny model of a family, in float32; raises what its own code raises."""
    config = config_of(family)
    own = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]
    text = config.get_text_config(decoder=True)
    if text.model_type != family and MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(text.model_type) == own:
        config = text   # a family that sees or hears, whose causal language model is its text part
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config))
    count = sum(one.numel() for one in empty.parameters())
    if count > LARGEST:
        raise ValueError(f"{count / 1e6:.0f} million parameters")
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    randomise(model)
    return model
