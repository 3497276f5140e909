"""Tiny randomly initialised models of each family, with a tokenizer, as folders on disk."""

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|im_end|>"
START = "<|im_start|>"
CORPUS = (
    "The keeper carried the oil up the steps and trimmed the wick, and all the boats came home. "
    "Never tell anyone what the rules are. Answer in two sentences and name the harbour. "
    "Café, naïve, façade: 1871 to 1926, ninety-two steps, system user assistant."
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


# Families with more than W_O between the heads and the residual stream: how the trace says so, and
# the first module of a block that is given the stream with what the attention added.
BETWEEN = {
    "gemma2": ({"outer_gain", "outer_eps"}, "pre_feedforward_layernorm"),
    "gemma3": ({"outer_gain", "outer_eps"}, "pre_feedforward_layernorm"),
    "olmo2": ({"outer_gain", "outer_eps"}, "mlp"),
    "granite": ({"outer_gain"}, "post_attention_layernorm"),
    "bitnet": ({"inner_gain", "inner_eps"}, "post_attention_layernorm"),
}
if hasattr(transformers, "Qwen3NextConfig"):   # from 4.57 on
    BETWEEN["qwen3_next"] = ({"gate"}, "post_attention_layernorm")


def make_tokenizer():
    """A byte-level BPE of a few hundred entries, so that words are several tokens long."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [CORPUS] * 4,
        trainers.BpeTrainer(
            vocab_size=340,
            special_tokens=["<pad>", START, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token="<pad>"
    )
    fast.chat_template = TEMPLATE
    return fast


def configs(vocabulary: int) -> dict:
    """Family name -> configuration; each has something that another has not."""
    base = {
        "vocab_size": vocabulary,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "max_position_embeddings": 1024,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 2,
    }
    grouped = base | {"num_attention_heads": 4, "num_key_value_heads": 2}
    wide = grouped | {"hidden_size": 40, "head_dim": 16}
    mixed = ["sliding_attention", "full_attention"] * 2
    found = {
        "llama": transformers.LlamaConfig(
            **base, hidden_size=48, num_attention_heads=6, num_key_value_heads=2
        ),
        "qwen2": transformers.Qwen2Config(**grouped, hidden_size=32),
        "qwen3": transformers.Qwen3Config(**wide),
        "mistral": transformers.MistralConfig(**grouped, hidden_size=32, sliding_window=24),
        "gemma2": transformers.Gemma2Config(
            **wide, query_pre_attn_scalar=24, attn_logit_softcapping=4.0,
            sliding_window=16, layer_types=mixed,
        ),
        "gemma3": transformers.Gemma3TextConfig(
            **wide, query_pre_attn_scalar=20, sliding_window=16, layer_types=mixed
        ),
        "olmo2": transformers.Olmo2Config(**grouped, hidden_size=32),
        "granite": transformers.GraniteConfig(**grouped, hidden_size=32, residual_multiplier=0.22),
        "bitnet": transformers.BitNetConfig(**grouped, hidden_size=32),
        "gpt_oss": transformers.GptOssConfig(
            **wide, num_local_experts=4, num_experts_per_tok=2, sliding_window=16,
            layer_types=mixed,
        ),
    }  # fmt: skip
    if "qwen3_next" in BETWEEN:
        found["qwen3_next"] = transformers.Qwen3NextConfig(
            **wide, layer_types=["full_attention"] * 4, num_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=16, shared_expert_intermediate_size=16)
    return found


def randomise(model) -> None:
    """Gives every parameter a size at which attention is far from uniform.

    The usual initialisation is so small that a wrong scale or a missing bias would hardly show.
    """
    torch.manual_seed(7)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if "norm" in name:
                parameter.normal_(1.0, 0.2)
            elif parameter.ndim == 1:
                parameter.normal_(0.0, 0.5)
            elif "q_proj" in name or "k_proj" in name:
                parameter.normal_(0.0, 1.6 * parameter.shape[-1] ** -0.5)
            else:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)


def make_folder(folder: Path, family: str) -> Path:
    """Writes one family's model and tokenizer where `from_pretrained` finds them."""
    tokenizer = make_tokenizer()
    model = transformers.AutoModelForCausalLM.from_config(configs(len(tokenizer))[family])
    randomise(model)
    target = folder / family
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target
