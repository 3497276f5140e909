"""What moved queries keep and what a real second reading keeps: studies/make.sh readings
DIR -o TABLE.csv

DIR holds the runs of `studies/losses.sh DIR fresh`, its traces included. Every text is replayed with
`rehearsal:recent` by its own moved queries and by those of the second reading. For each head it is
measured how much it copies: in the second reading, the attention of a token on the entry that followed
it in the first. Then what later queries look at, times what it adds (A ||v W||), is summed over what
either set keeps, in the tenth of the heads that copy most and in the others.
"""

import argparse
import csv
import tempfile
from pathlib import Path

import h5py
import numpy as np
import xarray

from kvsim.program import run
from . import plan, runs

MOVED, REAL = plan.RECENT, f"{plan.RECENT},queries=probe"
POLICIES = (MOVED, REAL, "oracle-stream")
BUDGETS = ("0.1", "0.35")
COPIES = 0.9     # quantile of the copying above which a head counts as one that copies
NEWEST = 128     # tokens
QUERIES, PIECE = 256, 128   # of `rehearsal`: observing queries, tokens of a piece
SETS = {"both": lambda moved, real: moved & real, "moved only": lambda moved, real: moved & ~real,
        "real only": lambda moved, real: real & ~moved}
HEADER = ("text", "seed", "budget", "of", "what", "value")


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def copying(q, k, own_k, reads, scale):
    """Mean attention, of tokens that read an entry again, on the entry behind it. q [P, d]."""
    begin, end = reads
    tokens = np.arange(len(q) - (end - begin), len(q) - 1)   # copies of begin .. end - 2
    keys = np.concatenate([k, own_k])
    logits = scale * q[tokens] @ keys.T
    logits[np.arange(len(keys)) > len(k) + tokens[:, None]] = -np.inf
    return softmax(logits)[np.arange(len(tokens)), begin + 1 + np.arange(len(tokens))].mean()


def copying_moved(q, k, frequencies, scale):
    """The same of the prompt's own queries, moved behind it as `rehearsal` moves them. q [n, d]."""
    n, half = len(k), q.shape[1] // 2
    count = min(QUERIES, n)
    at = np.arange(1, count + 1) * n // count - 1
    at = at[at < n - 1]
    place = at % PIECE
    turn = ((n + place - at)[:, None] * frequencies).astype(np.float32)
    a, b = q[at, :half], q[at, half:]
    moved = np.concatenate([a * np.cos(turn) - b * np.sin(turn),
                            a * np.sin(turn) + b * np.cos(turn)], axis=1)
    entries = np.arange(n)
    own = (entries <= at[:, None]) & (entries >= (at - place)[:, None])
    piece = np.where(own, scale * q[at] @ k.T, -np.inf)
    return softmax(np.concatenate([scale * moved @ k.T, piece], axis=1))[
        np.arange(len(at)), at + 1].mean()


def copy_rows(trace, text):
    """What both kinds of queries give the entry behind, in heads that copy and in the others."""
    real, moved = [], []
    with h5py.File(trace) as f:
        n, scale = int(f.attrs["prompt_len"]), float(f.attrs["attention_scale"])
        about, frequencies = f["probes/repeat"], f["rope/inv_freq"][:]
        reads = int(about["read_begin"][0]), int(about["read_end"][0])
        for layer in sorted(f["layers"], key=int):
            q, k, pq, pk = (np.asarray(f[f"layers/{layer}/{name}"], np.float32)
                            for name in ("q", "k", "probes/repeat/q", "probes/repeat/k"))
            for head in range(len(q)):
                own = head * len(k) // len(q)
                real.append(copying(pq[head], k[own, :n], pk[own], reads, scale))
                moved.append(copying_moved(q[head, :n], k[own, :n], frequencies, scale))
    copies = np.array(real) >= np.quantile(real, COPIES)
    for of, found in ((REAL, real), (MOVED, moved)):
        for name, heads in (("copying", copies), ("others", ~copies)):
            yield [text.kind, text.seed, "", of, f"{name}: attention on the entry behind",
                   f"{np.array(found)[heads].mean():.4g}"]


def heads_of(trace):
    """[layer, head] how much it copies, and [layer, head, entry] what later queries see of it."""
    with h5py.File(trace) as f:
        n, scale = int(f.attrs["prompt_len"]), float(f.attrs["attention_scale"])
        position, about = f["query_position"][:], f["probes/repeat"]
        later = position >= n
        reads = int(about["read_begin"][0]), int(about["read_end"][0])
        if len(about["part_begin"]) != 1:
            raise SystemExit(f"{trace}: the prompt is read again in parts, expected one")
        copied, seen = [], []
        for layer in sorted(f["layers"], key=int):
            group = f[f"layers/{layer}"]
            q, k, v, wo, pq, pk = (np.asarray(group[name], np.float32) for name in (
                "q", "k", "v", "wo", "probes/repeat/q", "probes/repeat/k"))
            shared = len(q) // len(k)
            hidden = np.arange(k.shape[1]) > position[later][:, None]
            for head in range(len(q)):
                own = head // shared
                logits = np.where(hidden, -np.inf, scale * q[head][later] @ k[own].T)
                norms = np.linalg.norm(v[own, :n] @ wo[head], axis=1)
                seen.append(softmax(logits)[:, :n].sum(0) * norms)
                copied.append(copying(pq[head], k[own, :n], pk[own], reads, scale))
        shape = len(f["layers"]), len(q)
    return np.reshape(copied, shape), np.reshape(seen, (*shape, n))


def kept_sets(trace):
    """{(policy, budget): [layer, head, entry]}."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "kept.nc")
        run(["replay", trace, "-o", results, "--save-keep", "-q", "--wo-steps", "0", "--budget",
             ",".join(BUDGETS), *(word for one in POLICIES for word in ("--policy", one))], False)
        with xarray.open_dataset(results, engine="h5netcdf") as data:
            share = data.sizes["head"] // data.sizes["kv_head"]
            return {(policy, budget): np.repeat(data.kept_mask.values[p, b] == 1, share, axis=1)
                    for p, policy in enumerate(POLICIES) for b, budget in enumerate(BUDGETS)}


def rows(trace, text):
    yield from copy_rows(trace, text)
    copied, seen = heads_of(trace)
    copies = copied >= np.quantile(copied, COPIES)
    kept = kept_sets(trace)
    newest = np.arange(seen.shape[2]) >= seen.shape[2] - NEWEST
    for budget in BUDGETS:
        def row(of, what, value, budget=budget):
            return [text.kind, text.seed, budget, of, what, f"{value:.4g}"]

        for policy in POLICIES:
            own = kept[policy, budget]
            for name, heads in (("copying", copies), ("others", ~copies)):
                yield row(policy, f"{name}: seen later, share kept",
                          (seen * own)[heads].sum() / seen[heads].sum())
                yield row(policy, f"{name}: entries kept", own[heads].mean())
        for name, of in SETS.items():
            own = of(kept[MOVED, budget], kept[REAL, budget])
            yield row(name, "share of what one keeps", own.sum() / kept[MOVED, budget].sum())
            yield row(name, "in copying heads", own[copies].sum() / own.sum())
            yield row(name, f"among the newest {NEWEST}", own[..., newest].sum() / own.sum())
            yield row(name, "seen later, share", seen[own].sum() / seen.sum())


def read(studies):
    """{(of, what, budget): {text: value}}."""
    found = {}
    with (studies / "losses/readings.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = row["of"], row["what"], row["budget"]
            found.setdefault(key, {})[f"{row['text']} {row['seed']}"] = float(row["value"])
    return found


def table(studies):
    """Header and rows: the switching task beside the mean over the other texts, at the lowest budget."""
    found = read(studies)

    def cells(of, what, budget=BUDGETS[0]):
        values = found[of, what, budget]
        others = [value for text, value in values.items() if not text.startswith("switch")]
        return [f"{next(v for t, v in values.items() if t.startswith('switch')):.2f}",
                f"{np.mean(others):.2f} ({min(others):.2f} to {max(others):.2f})"]

    names = {MOVED: "moved queries", REAL: "second reading", POLICIES[2]: "hindsight"}
    rows = [[f"{names[of]}: attention on the entry behind, heads that copy",
             *cells(of, "copying: attention on the entry behind", "")] for of in (MOVED, REAL)]
    for heads, title in (("copying", "heads that copy"), ("others", "other heads")):
        rows += [[f"{names[of]}: kept of what is seen later, {title}",
                  *cells(of, f"{heads}: seen later, share kept")] for of in POLICIES]
    for own, title in (("moved only", "moved queries"), ("real only", "the second reading")):
        rows += [[f"kept by {title} alone: {text}", *cells(own, what)] for what, text in (
            ("in copying heads", "share in heads that copy"),
            (f"among the newest {NEWEST}", f"share among the newest {NEWEST} tokens"),
            ("seen later, share", "share of all that is seen later"))]
    count = len({text for values in found.values() for text in values}) - 1
    return [f"at budget {BUDGETS[0]}", "switching task", f"mean of {count} other texts (range)"], rows


def main():
    parser = argparse.ArgumentParser(prog="readings.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("-o", "--out", required=True, type=Path, metavar="TABLE.csv")
    options = parser.parse_args()
    made = []
    for text in plan.FRESH:
        trace = options.folder / "fresh/traces" / f"{text.name}.h5"
        if trace.is_file():
            made += rows(trace, text)
    runs.write(options.out, [HEADER, *made])


if __name__ == "__main__":
    main()
