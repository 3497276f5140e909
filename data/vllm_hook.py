"""Records what the attention of a running vLLM sees: paste it, or put this file on PYTHONPATH.

Written after the source of vLLM 0.19 (engine V1), where it was not run; models laid out as Llama, one
device, one request:

    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"   # functions travel to the worker
    llm = vllm.LLM(NAME, enforce_eager=True, enable_prefix_caching=False)
    llm.apply_model(vllm_hook.record)
    out = llm.generate(PROMPT, vllm.SamplingParams(temperature=0, max_tokens=128))[0]
    llm.apply_model(partial(vllm_hook.write, folder="dump"))
    kvsim.from_engine("dump", "trace.h5", model=NAME, prompt_len=len(out.prompt_token_ids),
                      tokens=[*out.prompt_token_ids, *out.outputs[0].token_ids][:-1],
                      rope_theta=THETA)
"""

from pathlib import Path

import numpy as np
import torch


def attentions(model):
    """(name, module, block, decoder layer) of every attention: its o_proj stands beside it."""
    for name, module in model.named_modules():
        if {"num_heads", "num_kv_heads", "head_size", "impl"} <= set(dir(module)):
            block, layer = name.rsplit(".", 1)[0], name.rsplit(".", 2)[0]
            yield name, module, model.get_submodule(block), model.get_submodule(layer)


def said(module):
    """scale, window, softcap and sinks (0 and [] are none) of the object that computes attention."""
    impl = module.impl
    unsaid = [name for name in ("scale", "sliding_window", "logits_soft_cap")
              if not hasattr(impl, name)]
    if unsaid or getattr(impl, "alibi_slopes", None) is not None:
        raise TypeError(f"{type(impl).__name__}: " + (f"has no {', '.join(unsaid)}" if unsaid else
                        "found ALiBi slopes, which no trace describes"))
    window, sinks = impl.sliding_window, getattr(impl, "sinks", None)
    if isinstance(window, (tuple, list)):   # what is seen to the left and to the right; -1: all
        window = window[0] + 1
    return {"scale": float(impl.scale), "window": max(0, int(window or 0)),
            "softcap": float(impl.logits_soft_cap or 0),
            "sinks": [] if sinks is None else sinks.detach().float().cpu().numpy()}


def record(model):
    """Queries and keys are rotated, and [tokens, heads * size], where vLLM's Attention is called."""
    for _, module, _, layer in attentions(model):
        module.seen = seen = {"q": [], "k": [], "v": [], "out": [], "norm": []}

        def attention(module, args, output, seen=seen):
            for name, tensor in zip(("q", "k", "v", "out"), (*args[:3], output)):
                seen[name].append(tensor.detach().float().cpu())

        def stream(layer, args, seen=seen):   # (positions, hidden states, what is added to them)
            hidden, residual = args[1], args[2]
            whole = hidden if residual is None else hidden + residual
            seen["norm"].append(torch.linalg.vector_norm(whole.detach().float(), dim=-1).cpu())

        module.hooks = [module.register_forward_hook(attention),
                        layer.register_forward_pre_hook(stream)]


def write(model, folder):
    """A file per layer: q [tokens, Hq, d], k and v [tokens, Hkv, d], wo [D, Hq * d], outputs before
    wo [R, Hq, d] at eight positions, and what `said` returns."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for index, (_, module, block, _) in enumerate(attentions(model)):
        for hook in module.hooks:
            hook.remove()
        whole = {name: torch.cat(parts).numpy() for name, parts in module.seen.items()}
        for name in ("q", "k", "v", "out"):
            whole[name] = whole[name].reshape(len(whole["norm"]), -1, module.head_size)
        at = np.unique(np.arange(1, 9) * len(whole["norm"]) // 8).clip(1) - 1
        np.savez(Path(folder) / f"layer-{index}.npz", check_position=at,
                 check_output=whole.pop("out")[at],
                 wo=block.o_proj.weight.detach().float().cpu().numpy(), **said(module), **whole)
        del module.seen, module.hooks
