"""PyTorch's forms of the replay that kvsim_bench times, on the data it wrote.

mask: per policy and budget, masked_fill, softmax and a product over all keys.
gather: per policy and budget, index keys and values, dense attention on what is kept.
binned: softmax once; per policy and band between two budgets, one product over the band.

Reads names from standard input, answers each with the seconds of one run."""
import sys
import time

import numpy
import torch

path, n, d, group, steps, threads = sys.argv[1], *map(int, sys.argv[2:7])
torch.set_num_threads(threads)
torch.set_grad_enabled(False)
M, N, P = group * steps, n + steps, 8
budgets = [.01, .02, .03, .05, .08, .12, .18, .25, .35, .5]
kept = [max(1, int(n * f + 0.5)) for f in budgets]
raw = numpy.fromfile(path, dtype=numpy.float32, count=(M + 2 * N) * d)
order = numpy.fromfile(path, dtype=numpy.uint32, offset=raw.nbytes)
order = order.reshape(P, n).astype(numpy.int64)
Q, K, V = (torch.from_numpy(x.reshape(-1, d)) for x in numpy.split(raw, [M * d, (M + N) * d]))
order = torch.from_numpy(order)
later = torch.arange(n, N)
# Step s sees later positions n..n+s; rows are head-major.
hidden = torch.arange(steps)[None, :] > torch.arange(M)[:, None] % steps


def scores(keys):
    """Scores of keys that end with all later positions."""
    s = Q @ keys.T
    s[:, -steps:].masked_fill_(hidden, float("-inf"))
    return s


def mask():
    s = scores(K)
    full = torch.logsumexp(s, -1)
    outputs, masses = [], []
    for p in range(P):
        for k in kept:
            drop = torch.ones(N, dtype=torch.bool)
            drop[order[p, :k]] = False
            drop[later] = False
            masked = s.masked_fill(drop, float("-inf"))
            masses.append((torch.logsumexp(masked, -1) - full).exp())
            outputs.append(torch.softmax(masked, -1) @ V)
    outputs.append(torch.softmax(s, -1) @ V)
    return outputs, masses


def gather():
    s = scores(K)
    full = torch.logsumexp(s, -1)
    outputs, masses = [], []
    for p in range(P):
        for k in kept:
            index = torch.cat([order[p, :k], later])
            part = scores(K[index])
            masses.append((torch.logsumexp(part, -1) - full).exp())
            outputs.append(torch.softmax(part, -1) @ V[index])
    outputs.append(torch.softmax(s, -1) @ V)
    return outputs, masses


def binned():
    a = torch.softmax(scores(K), -1)
    outputs, masses = [], []
    for p in range(P):
        z = a[:, n:] @ V[n:]
        mass = a[:, n:].sum(-1)
        begin = 0
        for k in kept:
            index = order[p, begin:k]
            w = a[:, index]
            mass = mass + w.sum(-1)
            z = z + w @ V[index]
            begin = k
            masses.append(mass)
            outputs.append(z / mass[:, None])
    outputs.append(a @ V)
    return outputs, masses


def largest_error(outputs):
    """Against float64, for a few rows."""
    worst = 0.0
    for row in range(0, M, 1 + M // 3):
        e = Q[row].double() @ K.double().T
        e[n + row % steps + 1:] = float("-inf")
        e = (e - e.max()).exp()
        for p in range(P):
            for b, k in enumerate(kept):
                index = torch.cat([order[p, :k], later])
                z = e[index] @ V[index].double() / e[index].sum()
                error = (outputs[p * len(kept) + b][row].double() - z).norm() / z.norm()
                worst = max(worst, error.item())
    return worst


FORMS = {"torch_mask": mask, "torch_gather": gather, "torch_binned": binned}
for name, form in FORMS.items():
    error = largest_error(form()[0])
    print("error", name, f"{error:.2g}", flush=True)
    if not error < 2e-5:
        sys.exit(1)
print("device PyTorch", torch.__version__)
print("ready", flush=True)
clock = time.perf_counter
for line in sys.stdin:
    if line.strip() == "processor-time":
        clock = time.process_time
        continue
    begin = clock()
    FORMS[line.strip()]()
    print(clock() - begin, flush=True)
