"""Damaged and odd files through what Python alone reads: the files of searches, and the results and
traces that the closed loop takes. Any input is taken, or answered by an error of one line.

    python tests/python/test_fuzz.py                            some inputs, as every test run does
    python tests/python/test_fuzz.py --only search --runs 1000000 --first 5000

Needs KVSIM_BIN or build/kvsim and the modules of plots/requirements.txt; without them one line says
so and nothing is tested. Finds lie in the folder --finds.
"""

import argparse
import functools
import json
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import h5py
import numpy as np

import kvsim
import kvsim.program
from kvsim.kvtrace.kept_sets import ResultsFile
from kvsim.kvtrace.token_trace import TokenTrace
from kvsim.searches import config, space

kvsim.program.find_program()

MEMORY = 4 << 30       # address space of a reader
PATIENCE = 10          # seconds of a processor for one input
BATCH = 500            # inputs of one reader
ANSWERS = (kvsim.Error, RuntimeError, OSError)   # what run_tool makes one line of

VALUES = ['0', '-1', '1e400', 'nan', 'true', '""', '[]', '{}', '"any"', '[1, "a"]', '[[]]',
          '{low = 1, high = 0}', '{low = 0, high = 1, log = true}', '1979-05-27',
          '0x7fffffffffffffff', '9223372036854775808', '"\\u202e"', '[0.1, 0.1]', '"../../x"', '{file = "x", kind = 3}']
TEXTS = ["", "x", "\x1b[2J", "{", "[]", "{}", '{"policies": 3}', '{"policies": [3]}', "[" * 5000,
         '{"policies": [{"record": "snapkv", "parameters": []}]}', "nan", "9" * 400,
         '{"policies": [{"record": "snapkv", "parameters": {"merge": []}}], "importance": 3}']
NUMBERS = [0, 1, -1, 2, 255, 2**31, 2**40, 2**62, -2**63]
STRUCTURES = (b"TREE", b"SNOD", b"HEAP", b"GCOL", b"OHDR", b"FRHP", b"BTHD")


def odd_text(rng, seeds):
    """A search's file with some keys or characters changed."""
    lines = rng.choice(seeds).splitlines()
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        key = lines[at].split("=")[0]
        lines[at] = rng.choice([
            lambda: "", lambda: f"{key} = {rng.choice(VALUES)}", lambda: rng.choice(lines),
            lambda: lines[at][:rng.randint(0, len(lines[at]))], lambda: f"[{key.strip('[]= ')}]",
            lambda: f"[[{key.strip('[]= ')}]]", lambda: f"{rng.choice(lines).split('=')[0]} = 1",
            lambda: "".join(rng.choice([c, c, c, chr(rng.randrange(0x110000 - 0x800) % 0xD800)])
                            for c in lines[at])])()
    return "\n".join(lines).encode(errors="surrogatepass")


def odd_bytes(rng, seeds):
    """A file of HDF5 with a field of its structure changed."""
    data = bytearray(rng.choice(seeds))
    places = [0] + [at for sign in STRUCTURES for at in _all(data, sign)]
    for _ in range(rng.randint(1, 4)):
        width = rng.choice([1, 2, 4, 8])
        at = min(rng.choice(places) + width * rng.randrange(40), len(data) - width)
        value = rng.choice([rng.getrandbits(8 * width), rng.choice(NUMBERS), len(data),
                            rng.choice(places)])
        data[at:at + width] = struct.pack("<Q", value % 2**64)[:width]
    return bytes(data[:rng.randint(0, len(data))] if rng.random() < 0.05 else data)


def _all(data, sign):
    at = data.find(sign)
    while at >= 0:
        yield at
        at = data.find(sign, at + 1)


def odd_contents(rng, seeds):
    """A sound file of HDF5 with other contents."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(rng.choice(seeds))
        with h5py.File(path, "r+") as file:
            names = []
            file.visit(names.append)
            for _ in range(rng.randint(1, 3)):
                try:
                    _edit(rng, file, rng.choice(names))
                except (KeyError, TypeError, ValueError, OSError, RuntimeError, AttributeError):
                    pass   # gone by an edit before
        return path.read_bytes()


def _edit(rng, file, name):
    owner = rng.choice([file, file, file[name]])
    shape = rng.choice([(), (0,), (1,), (3,), (2, 2)])
    value = rng.choice([
        lambda: rng.choice(TEXTS), lambda: np.full(shape, rng.choice(NUMBERS), np.int64),
        lambda: np.full(shape, rng.choice([0.5, np.nan, np.inf, -1e300])),
        lambda: np.full(shape, b"x"), lambda: h5py.Empty("f8")])()
    kind = rng.random()
    if kind < 0.5 and len(owner.attrs):
        key = rng.choice(list(owner.attrs))
        del owner.attrs[key]
        if rng.random() < 0.8:
            owner.attrs[key] = value
    elif kind < 0.6:
        file.move(name, name + "x") if rng.random() < 0.5 else file.pop(name)
    elif kind < 0.7 and isinstance(file[name], h5py.Dataset) and file[name].size:
        file[name][...] = rng.choice([np.nan, 255, 3, 0])
    else:
        del file[name]
        file[name] = rng.choice([value, h5py.SoftLink("/" + name), h5py.ExternalLink("/etc/x", "/"),
                                 h5py.SoftLink("/layer")])


@functools.lru_cache(None)
def settings_of(record):
    return _settings_of(record)


_settings_of, space.settings_of = space.settings_of, settings_of


def use_search(path):
    found = config.read(path)
    space.Space(found)
    found.identity()


def use_results(path):
    """Parts that the closed loop reads of results before a model is loaded."""
    with ResultsFile(path) as results:
        results.choose(None, results.policies, "policy")
        results.check_sets()
        for policy in range(len(results.policies)):
            for budget in range(len(results.budgets) if results.is_static(policy) else 0):
                results.sets(policy, budget).digest()
        assert results.trace


def use_trace(path):
    for later in ("", "repeat"):
        with TokenTrace(path, later) as trace:
            trace.run_tokens()
            trace.answer_begin()
            trace.model_name()
            trace.query_positions[trace.query_positions < trace.prompt_len]
            trace.layer(trace.layers[-1]).keys[:, :trace.prompt_len].astype(np.float64)


def search_seeds(_):
    return [path.read_text() for path in (ROOT / "data" / "searches").glob("*.toml")]


def loop_seeds(folder, kind):
    """Small results, or the trace they are of."""
    trace, results = folder / "in.h5", folder / "in.nc"
    if not results.exists():
        kvsim.synth(trace, prompt=12, steps=4, num_layers=2, heads=2, kv_heads=1, head_dim=4)
        with h5py.File(trace, "r+") as file:
            if "tokens/id" not in file:
                file["tokens/id"] = np.arange(16, dtype=np.int32)
            file.attrs["source"] = json.dumps({"answer_begin": 13,
                                               "model_source": "x of the caller"})
        kvsim.replay(trace, ["snapkv,window=2", "keepkv,window=2"], ["0.5", "3"], out=results,
                     save_keep=True)
    return [(trace if kind == "trace" else results).read_bytes()]


def odd_hdf5(rng, seeds):
    return (odd_bytes if rng.random() < 0.5 else odd_contents)(rng, seeds)


TARGETS = {
    "search": (use_search, search_seeds, odd_text),
    "results": (use_results, functools.partial(loop_seeds, kind="results"), odd_hdf5),
    "trace": (use_trace, functools.partial(loop_seeds, kind="trace"), odd_hdf5),
}


def read_all(name, seeds, numbers, folder, told):
    """In a process of its own: HDF5 may take it down. Says the number before it begins."""
    use, _, change = TARGETS[name]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    path = folder / ("odd.toml" if name == "search" else "odd.h5")
    for number in numbers:
        os.write(told, struct.pack("<q", number))
        data = change(random.Random(number), seeds)
        path.write_bytes(data)
        signal.setitimer(signal.ITIMER_PROF, PATIENCE)
        try:
            use(path)
        except ANSWERS as error:
            if isinstance(error, kvsim.Error) and len(str(error).splitlines()) != 1:
                keep(folder, name, number, data, f"more than one line: {error!r}")
        except Exception:
            keep(folder, name, number, data, traceback.format_exc())
        signal.setitimer(signal.ITIMER_PROF, 0)


def keep(folder, name, number, data, said):
    (folder / f"find-{name}-{number}").write_bytes(data)
    (folder / f"find-{name}-{number}.txt").write_text(said)


def run(name, seeds, first, runs, folder):
    """How often the library took the reader down."""
    crashes, next_one, end = 0, first, first + runs
    while next_one < end:
        heard, told = os.pipe()
        numbers = range(next_one, min(next_one + BATCH, end))
        child = os.fork()
        if child == 0:
            os.close(heard)
            code = 1
            try:
                read_all(name, seeds, numbers, folder, told)
                code = 0
            finally:
                os._exit(code)
        os.close(told)
        with os.fdopen(heard, "rb") as pipe:
            said = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            next_one = numbers.stop
            continue
        at = struct.unpack("<q", said[-8:])[0]
        data = TARGETS[name][2](random.Random(at), seeds)
        if status not in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE) or \
                name == "search":
            keep(folder, name, at, data, f"ended with {status}")
        crashes += 1
        next_one = at + 1
    return crashes


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=TARGETS)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--finds", type=Path)
    options = parser.parse_args()
    finds = []
    with tempfile.TemporaryDirectory() as place:
        folder = options.finds or Path(place)
        folder.mkdir(exist_ok=True)
        for name, (_, seeds_of, _) in TARGETS.items():
            if options.only in (None, name):
                seeds = seeds_of(folder)
                crashes = run(name, seeds, options.first, options.runs, folder)
                print(f"{name}: {options.runs} inputs, libhdf5 crashed on {crashes}", flush=True)
        finds = sorted(folder.glob("find-*.txt"))
        for find in finds[:20]:
            print(find.name, find.read_text()[-1500:], sep="\n")
    sys.exit(1 if finds else 0)


if __name__ == "__main__":
    main()
