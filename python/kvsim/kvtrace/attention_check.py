"""Attention of a layer computed again from what a trace stores: by PyTorch, whose threads are as many as
the user asked for."""

import numpy as np
import torch


def check_rows(call, positions: np.ndarray) -> float:
    """Largest relative error, over heads, of attention recomputed from what is stored, a
    record.LayerCall, at its check positions.

    The formula is the trace format's. A large error means that this model's attention does
    something that the format cannot say, and the capture must not pretend otherwise.
    """
    query, key, value, truth = (torch.from_numpy(np.ascontiguousarray(one)) for one in (
        call.check_query, call.key, call.value, call.check_output))
    place, at = torch.arange(key.shape[1]), torch.from_numpy(np.asarray(positions))[:, None]
    visible = place <= at
    if call.sliding_window:
        visible &= place > at - call.sliding_window
    # Query heads of a KV head side by side: [Hkv, group, R, n].
    heads, group = key.shape[0], query.shape[0] // key.shape[0]
    logits = call.scale * (query.reshape(heads, -1, query.shape[2]) @ key.transpose(1, 2)).unflatten(
        1, (group, -1))
    if call.softcap:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    logits = logits.masked_fill(~visible, -torch.inf)
    sink = logits.new_full((heads, group, 1, 1), -torch.inf) if call.sink is None else \
        torch.from_numpy(call.sink).to(logits).reshape(heads, group, 1, 1)
    top = logits.amax(-1, keepdim=True).maximum(sink)
    weights = (logits - top).exp()
    weights /= weights.sum(-1, keepdim=True) + (sink - top).exp()
    output = (weights.flatten(1, 2) @ value).reshape(truth.shape)
    scale = truth.flatten(1).norm(dim=1)
    off = (output - truth).flatten(1).norm(dim=1)
    return float((off / scale)[scale > 0].max()) if (scale > 0).any() else 0.0
