"""Finds what the model's last layer makes of what the attention of each layer adds (KVgrad).

With h_p the output of the last block at token p of a part, Phi = sum over p of ||h_p||^2. Kept is
the norm of its gradient with respect to what a layer's attention adds at each token of the part.
"""

import numpy as np
import torch

from .cache_names import cache_in, with_cache
from .layers import find_attention_layers
from .stream import StreamWatch


def gradient_norms(model, layers: list[int], prompt: list[int], part: list[int]):
    """{layer: [tokens of the part]}: the norms of the gradient of Phi.

    The prompt is read without a graph; its cache is constant for the part behind it.
    """
    modules, added, last = find_attention_layers(model), {}, {}
    watch = StreamWatch([0])

    def enter(module, args, kwargs):
        watch.enter(args[0] if args else kwargs["hidden_states"])

    def projected(module, args, output):
        watch.heads(args[0][:, :, None])
        watch.projected(args[0], output)

    def keep(layer):
        def leave(module, args, output):
            trail = watch.leave()
            if trail is not None and trail.added:
                added[layer] = trail.share
                added[layer].retain_grad()
        return leave

    def keep_last(module, args, output):
        last["hidden"] = output[0] if isinstance(output, tuple) else output

    frozen = [one for one in model.parameters() if one.requires_grad]
    device = model.device
    with torch.inference_mode(False), torch.no_grad():
        cache = cache_in(model(input_ids=torch.tensor([prompt], device=device), use_cache=True,
                               logits_to_keep=1))
    hooks = [hook for layer in layers for hook in (
        modules[layer].block.register_forward_pre_hook(enter, with_kwargs=True),
        modules[layer].projection.register_forward_hook(projected),
        modules[layer].block.register_forward_hook(keep(layer), always_call=True))]
    hooks.append(modules[max(modules)].block.register_forward_hook(keep_last))
    try:
        for one in frozen:
            one.requires_grad_(False)
        with torch.inference_mode(False), torch.enable_grad():
            ids = torch.tensor([part], device=device)
            embedded = model.get_input_embeddings()(ids).detach().requires_grad_(True)
            model(inputs_embeds=embedded, use_cache=True, logits_to_keep=1,
                  **with_cache(model, cache))
            last["hidden"].float().square().sum().backward()
        return {layer: added[layer].grad[0].float().norm(dim=-1).cpu().numpy().astype(np.float32)
                for layer in layers}
    finally:
        for hook in hooks:
            hook.remove()
        for one in frozen:
            one.requires_grad_(True)
