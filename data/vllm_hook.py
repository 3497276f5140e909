"""Records what the attention of a running vLLM sees: paste it, or put this file on PYTHONPATH.

Written for vLLM 0.19 (engine V1), models laid out as Llama, one device, one request:

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


def record(model):
    """Queries and keys are rotated, and [tokens, heads * size], where vLLM's Attention is called."""
    for _, module, _, layer in attentions(model):
        module.seen = seen = {"q": [], "k": [], "v": [], "norm": []}

        def attention(module, args, seen=seen):
            for name, tensor in zip("qkv", args):
                seen[name].append(tensor.detach().float().cpu())

        def stream(layer, args, seen=seen):   # (positions, hidden states, what is added to them)
            hidden, residual = args[1], args[2]
            whole = hidden if residual is None else hidden + residual
            seen["norm"].append(torch.linalg.vector_norm(whole.detach().float(), dim=-1).cpu())

        module.hooks = [module.register_forward_pre_hook(attention),
                        layer.register_forward_pre_hook(stream)]


def write(model, folder):
    """A file per layer: q [tokens, Hq, d], k and v [tokens, Hkv, d], wo [D, Hq * d]."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for index, (_, module, block, _) in enumerate(attentions(model)):
        for hook in module.hooks:
            hook.remove()
        whole = {name: torch.cat(parts).numpy() for name, parts in module.seen.items()}
        for name in "qkv":
            whole[name] = whole[name].reshape(len(whole["norm"]), -1, module.head_size)
        np.savez(Path(folder) / f"layer-{index}.npz", scale=float(module.impl.scale),
                 wo=block.o_proj.weight.detach().float().cpu().numpy(), **whole)
        del module.seen, module.hooks
