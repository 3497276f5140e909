"""Tiny random models that see or hear, each with what its processor would give: tokens, and the
tensors of an image or a sound."""

import inspect

import families
import torch
import transformers

TEXT = {"vocab_size": 340, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SEEN = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGE, BEGIN, END, AUDIO = 330, 331, 332, 333   # ids of tokens that no text has


def prompt(*parts: int | tuple[int, int]) -> torch.Tensor:
    """Tokens [1, n]: numbers are so many of text, pairs a token and how often it comes."""
    generator = torch.Generator().manual_seed(5)
    ids = []
    for part in parts:
        ids += [part[0]] * part[1] if isinstance(part, tuple) else \
            torch.randint(5, 300, (part,), generator=generator).tolist()
    return torch.tensor([ids])


def llava():
    """Images are entries like others; two of 16 patches."""
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**SEEN, image_size=16, patch_size=4),
        text_config=transformers.LlamaConfig(**TEXT), image_token_id=IMAGE, image_token_index=IMAGE,
        vision_feature_layer=-1)
    ids = prompt(9, (IMAGE, 16), 7, (IMAGE, 16), 12)
    return (transformers.LlavaForConditionalGeneration(config),
            {"input_ids": ids, "attention_mask": torch.ones_like(ids),
             "pixel_values": torch.randn(2, 3, 16, 16)})


def gemma3():
    """Tokens of an image see one another, those behind them, too."""
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**SEEN, image_size=16, patch_size=4),
        text_config=transformers.Gemma3TextConfig(
            **TEXT, sliding_window=24, layer_types=["sliding_attention", "full_attention",
                                                    "sliding_attention"]),
        mm_tokens_per_image=4, image_token_id=IMAGE, image_token_index=IMAGE, boi_token_index=BEGIN,
        eoi_token_index=END)
    ids = prompt(9, (BEGIN, 1), (IMAGE, 4), (END, 1), 20)
    return (transformers.Gemma3ForConditionalGeneration(config),
            {"input_ids": ids, "token_type_ids": (ids == IMAGE).long(),
             "pixel_values": torch.randn(1, 3, 16, 16)})


def qwen2_5_vl():
    """Tokens of an image have positions by row and column, and text goes on behind the larger."""
    config = transformers.Qwen2_5_VLConfig(
        vision_config={"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4,
                       "out_hidden_size": 32, "patch_size": 4, "window_size": 16,
                       "fullatt_block_indexes": [1]},
        text_config={**TEXT, "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]},
                     "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                         "mrope_section": [1, 1, 2]}},
        image_token_id=IMAGE, vision_start_token_id=BEGIN, vision_end_token_id=END,
        video_token_id=AUDIO)
    ids = prompt(9, (BEGIN, 1), (IMAGE, 6), (END, 1), 20)
    given = {"input_ids": ids, "pixel_values": torch.randn(24, 3 * 2 * 4 * 4),
             "image_grid_thw": torch.tensor([[1, 4, 6]])}
    model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:   # of later versions
        given["mm_token_type_ids"] = (ids == IMAGE).long()
    return model, given


def voxtral():
    """A sound."""
    config = transformers.VoxtralConfig(
        audio_config=dict(SEEN, num_mel_bins=8, max_source_positions=32, d_model=32,
                          intermediate_size=4 * 32),
        text_config={**TEXT, "model_type": "llama"}, audio_token_id=AUDIO)
    ids = prompt(9, (AUDIO, 8), 20)
    return (transformers.VoxtralForConditionalGeneration(config),
            {"input_ids": ids, "input_features": torch.randn(1, 8, 64)})


def mllama():
    """An image that has no entries: layers of their own attend to it."""
    config = transformers.MllamaConfig(
        vision_config=transformers.models.mllama.configuration_mllama.MllamaVisionConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_global_layers=1,
            attention_heads=4, image_size=16, patch_size=4, vision_output_dim=96, max_num_tiles=2,
            intermediate_layers_indices=[0, 1],
            supported_aspect_ratios=[[1, 1], [1, 2], [2, 1]]),
        text_config=transformers.models.mllama.configuration_mllama.MllamaTextConfig(
            **{**TEXT, "num_hidden_layers": 4, "cross_attention_layers": [1],
               "rope_scaling": {"rope_type": "default"}}),
        image_token_index=IMAGE)
    ids = prompt(9, (IMAGE, 1), 20)
    return (transformers.MllamaForConditionalGeneration(config),
            {"input_ids": ids, "pixel_values": torch.randn(1, 1, 2, 3, 16, 16),
             "aspect_ratio_ids": torch.tensor([[1]]), "aspect_ratio_mask": torch.ones(1, 1, 2, dtype=torch.long),
             "cross_attention_mask": torch.ones(1, ids.shape[1], 1, 2, dtype=torch.long)})


def build(family: str) -> tuple:
    """(model in float32, inputs) of a family of this file."""
    torch.manual_seed(4)
    model, inputs = globals()[family]()
    families.randomise(model)
    return model.float().eval(), inputs
