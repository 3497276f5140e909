#!/usr/bin/env python3
"""Compares kept sets of a built kvsim with those of published code (see README.md).

    /usr/bin/python3 tests/golden/check_golden.py build/kvsim
    /usr/bin/python3 tests/golden/check_golden.py build/kvsim --only "restkv"
    /usr/bin/python3 tests/golden/check_golden.py build/kvsim long.json.gz   # of another trace

Needs numpy and h5py, nothing of the published code. Sets must be equal but for entries so close
to the threshold that rounding or the rule for ties decides.
"""
import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import h5py
import numpy as np

import golden_file as golden

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def replay(binary, trace, record, budgets, layers):
    """{(budget, layer): [set per head]} of one record, or the line that kvsim ended with."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "kept.nc")
        command = [binary, "replay", str(trace), "--policy", record, "--budget",
                   ",".join(budgets), "--save-keep", "--layers", ",".join(layers),
                   "-o", str(out), "-q"]
        done = subprocess.run(command, text=True, capture_output=True)
        if done.returncode:
            return None, (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
        with h5py.File(out) as file:
            # a record's kept sets belong to KV heads or to query heads; the others are 255
            masks = [file[name][0] for name in ("kept_mask", "kept_mask_query") if name in file]
            masks = {("kv_head", "query_head")[i]: x for i, x in enumerate(masks)
                     if not (x == 255).all()}
            stored = [str(x) for x in file["layer"][...]]
    if stored != layers or len(masks) != 1:
        return None, f"results hold layers {stored} and kept sets of {sorted(masks)}"
    (owner, mask), = masks.items()
    return owner, {(budget, layer): [set(np.flatnonzero(head == 1).tolist())
                                     for head in mask[b, l]]
                   for b, budget in enumerate(budgets) for l, layer in enumerate(layers)}


def with_draft(trace, tokens, folder):
    """A copy of a trace in which the first later tokens are a probe named draft, too."""
    made = pathlib.Path(folder, "drafted.h5")
    shutil.copyfile(trace, made)
    with h5py.File(made, "r+") as file:
        n = int(file.attrs["prompt_len"])
        first = int(np.searchsorted(file["query_position"][...], n))
        file["probes/draft/position"] = np.arange(n, n + tokens, dtype=np.int64)
        for layer in file["layers"].values():
            layer["probes/draft/q"] = layer["q"][:, first:first + tokens]
            for name in ("k", "v"):
                layer[f"probes/draft/{name}"] = layer[name][:, n:n + tokens]
    return made


def compare_head(counts, ours, theirs, near):
    """None if a head's kept sets agree, else what is wrong."""
    missing, extra = theirs - ours, ours - theirs
    if counts == "nested":
        return "neither set contains the other" if missing and extra else None
    if len(ours) != len(theirs):
        return f"{len(ours)} entries kept, {len(theirs)} in the golden"
    if counts == "off by one":
        return f"{len(missing)} entries differ" if len(missing) > 1 else None
    wrong = sorted((missing | extra) - near)
    return f"{len(wrong)} entries differ: {wrong[:8]}" if wrong else None


def compare(entry, kept):
    """Lines about one record at one budget that do not agree."""
    problems, differences = [], []
    total, golden_total, capped = 0, 0, False
    for layer, facts in entry["layers"].items():
        ours = kept[entry["budget"], layer]
        theirs = [golden.unpack_set(x) for x in facts["kept"]]
        near = [golden.unpack_set(x) for x in facts["near"]]
        if len(ours) != len(theirs):
            return [f"layer {layer}: {len(ours)} heads, {len(theirs)} in the golden"]
        total += sum(map(len, ours))
        golden_total += sum(map(len, theirs))
        for head, sets in enumerate(zip(ours, theirs, near)):
            differences.append(len(sets[0]) - len(sets[1]))
            capped = capped or len(sets[1]) == entry["entries"]
            problem = compare_head(entry["counts"], *sets)
            if problem:
                problems.append(f"layer {layer} head {head}: {problem}")
    if entry["counts"] == "nested":
        # the code may truncate once over all layers: less than one entry per layer and head
        if abs(total - golden_total) >= len(differences):
            problems.append(f"{total} entries kept in all, {golden_total} in the golden")
        # with a layer at its cap the excess goes elsewhere by another rule
        if not capped and max(map(abs, differences)) > 1:
            problems.append("a layer's budget differs by more than rounding")
    return problems


def check_file(binary, path, only):
    """(passed, failed, known) of one golden file; prints what disagrees."""
    data = golden.load(path)
    trace = ROOT / data["trace"]
    if hashlib.sha256(trace.read_bytes()).hexdigest() != data["trace_sha256"]:
        print(f"{path.name}: {trace} is not the trace that the goldens were made on")
        return 0, 1, 0
    with h5py.File(trace) as file:
        entries = int(file.attrs["prompt_len"])
    passed = failed = known = 0
    records = {}
    for entry in data["entries"]:
        if only in f"{path.name} {entry['record']}":
            records.setdefault(entry["record"], []).append({**entry, "entries": entries})
    for record, group in records.items():
        budgets, layers = [e["budget"] for e in group], list(group[0]["layers"])
        with tempfile.TemporaryDirectory() as folder:
            tokens = group[0].get("later_as_probe")
            given = with_draft(trace, tokens, folder) if tokens else trace
            owner, kept = replay(binary, given, record, budgets, layers)
        for entry in group:
            name = f"{path.name} {record} at {entry['budget']}"
            if owner is None:
                problems = [kept]
            elif owner != entry["owner"]:
                problems = [f"kept sets per {owner}, per {entry['owner']} in the golden"]
            else:
                problems = compare(entry, kept)
            if "differs" in entry:
                known += 1
                if owner is None:
                    failed += 1
                elif not problems:
                    print(f"{name}: agrees, though it should not: {entry['differs']}")
                    failed += 1
                continue
            passed, failed = passed + (not problems), failed + bool(problems)
            for problem in problems:
                print(f"{name}: {problem}")
    return passed, failed, known


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", nargs="?", default=os.environ.get("KVSIM_BIN"))
    parser.add_argument("golden", nargs="*", type=pathlib.Path,
                        default=sorted(HERE.glob("*.json.gz")), help="default: all in this folder")
    parser.add_argument("--only", default="", help="goldens whose 'file record' contains this")
    args = parser.parse_args()
    if not args.binary:
        parser.error("give the kvsim binary, or set KVSIM_BIN")
    binary = str(pathlib.Path(args.binary).resolve())
    totals = np.sum([check_file(binary, path, args.only)
                     for path in args.golden], axis=0)
    if totals[2]:
        print(f"{totals[2]} that cannot agree, see README.md")
    print(f"{totals[0]} passed, {totals[1]} failed")
    return int(totals[1] > 0)


if __name__ == "__main__":
    sys.exit(main())
