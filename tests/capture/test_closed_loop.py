"""Does the closed loop run the model as if the dropped entries were gone?

Judged by one ordinary pass over all tokens at once, through transformers' eager attention, whose
masks are changed where queries after the prompt meet dropped entries: no cache, no registry.
KVSIM_BIN=path/to/kvsim adds a real replay. Run: python3 tests/capture/test_closed_loop.py
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

import h5netcdf
import h5py
import numpy as np
import torch
import transformers
import xarray
import xxhash

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path[:0] = [str(Path(__file__).resolve().parents[2] / name) for name in ("python", "data")]

from kvsim.kvtrace import closed_loop_command as closed_loop
import tiny_models
from kvsim.kvtrace import closed_loop as loop_module
from test_capture import WithFolder

BUILT = Path(__file__).resolve().parents[2] / "build" / "kvsim"

PLAIN = {"schedule": "prefill", "merge": "drop", "quantize": "none", "positions": "absolute"}


def write_results(path, trace, layers, sets, parameters=None) -> Path:
    """A results file with the parts that a closed loop reads.

    `sets`: {policy: [bool array [layers, heads, n] per budget]}; `parameters`: stages per policy.
    """
    digest = xxhash.xxh3_128(trace.read_bytes()).hexdigest()
    with h5py.File(trace) as t:
        n, heads = int(t.attrs["prompt_len"]), int(t.attrs["num_query_heads"])
        kv_heads = int(t.attrs["num_kv_heads"])
    budgets = len(next(iter(sets.values())))
    policies = [{"record": name, "parameters": PLAIN | (parameters or {}).get(name, {})}
                for name in sets]
    labels = np.linspace(0.2, 0.8, budgets)
    dims = ("policy", "budget", "layer")
    data = xarray.Dataset(
        {"budget_label": ("budget", list(map(str, labels)))},
        {"policy": list(sets), "budget": labels, "layer": np.array(layers, dtype=np.int32), "step": [n]},
        {"prompt_len": n, "trace_digest": f"xxh3-128:{digest}", "config": json.dumps({"policies": policies}),
         "history": f"test {list(sets)}"})
    for name, head, count in (("kept_mask", "kv_head", kv_heads), ("kept_mask_query", "head", heads)):
        masks = np.full((len(sets), budgets, len(layers), count, n), np.nan)
        for p, chosen in enumerate(sets.values()):
            for b, one in enumerate(chosen):
                if one.shape[1] == count:
                    masks[p, b] = one
        data[name] = (*dims, head, "position"), masks
        data[name].encoding = {"dtype": "uint8", "_FillValue": 255}
    data.to_netcdf(path, engine="h5netcdf")
    return path


def random_sets(trace, layers, seed, per_query_head=False, share=0.4):
    """bool [layers, heads, n], other entries in every head."""
    with h5py.File(trace) as t:
        heads = t.attrs["num_query_heads" if per_query_head else "num_kv_heads"]
        shape = (len(layers), int(heads), int(t.attrs["prompt_len"]))
    return np.random.default_rng(seed).random(shape) < share


def masked_pass(folder: Path, ids, n: int, layers, kept, dtype=torch.float32):
    """Logits [N, vocabulary] of one pass over all tokens; `kept` [layers, heads, n] or None."""
    net = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    ).eval()
    heads = net.config.num_attention_heads
    for name, module in net.named_modules():
        if not name.endswith("self_attn") or kept is None or module.layer_idx not in layers:
            continue

        def hide(module, args, kwargs):
            one = kept[layers.index(module.layer_idx)]
            mask = kwargs["attention_mask"].repeat(1, heads, 1, 1)
            for head in range(heads):
                gone = np.flatnonzero(~one[head * len(one) // heads])
                mask[0, head, n:, gone] = torch.finfo(dtype).min
            return args, kwargs | {"attention_mask": mask}

        module.register_forward_pre_hook(hide, with_kwargs=True)
    with torch.inference_mode():
        return net(torch.tensor([list(ids)]), use_cache=False).logits[0].double()


class WithLoop(WithFolder):
    def trace_of(self, family: str) -> Path:
        path = self.folder / f"{family}_trace.h5"
        if not path.exists():
            self.run_capture(family, "--answer", self.answer, "--steps", 12, "--dtype", "float32",
                             name=path.name)
        return path

    def run_loop(self, family, trace, results, *options, name="loop.nc", code=0) -> Path:
        """Runs the command line; what it said is in `self.message`."""
        target = self.folder / name
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            try:
                status = closed_loop.main([
                    str(trace), str(results), "-o", str(target), "-q",
                    "--model", str(self.model_folder(family)), *map(str, options),
                ])  # fmt: skip
            except SystemExit as left:
                status = left.code
        self.message = errors.getvalue()
        self.assertEqual(status, code, self.message)
        self.assertEqual([p.name for p in self.folder.glob(".*partial")], [])
        if code not in (0, 130):
            self.assertEqual(self.message.count("\n"), 1, self.message)
        return target

    def values(self, target: Path) -> dict:
        with h5netcdf.File(target) as f:
            return {name: variable[...] for name, variable in f.variables.items()}

    def check_against_pass(self, family, layers, kept, results=None):
        """Losses of one set, from the command line and from two masked passes."""
        trace = self.trace_of(family)
        results = results or write_results(self.folder / "kept.nc", trace, layers, {"x": [kept]})
        found = self.values(self.run_loop(family, trace, results, "--overwrite"))
        with h5py.File(trace) as f:
            ids, n = f["tokens/id"][:], int(f.attrs["prompt_len"])
        folder = self.model_folder(family)
        full = masked_pass(folder, ids, n, layers, None).log_softmax(-1)[n:]
        part = masked_pass(folder, ids, n, layers, kept).log_softmax(-1)[n:]
        kl = (full.exp() * (full - part)).sum(-1).numpy()
        following = torch.tensor(ids[n + 1 :].astype(np.int64))[:, None]
        nll = (full - part)[:-1].gather(-1, following)[:, 0].numpy()
        self.assertGreater(kl.mean(), 1e-3)
        # Float32 logits of about 10 carry 1e-5 after four layers; both passes round differently.
        np.testing.assert_allclose(found["kl_divergence"][0, 0], kl, rtol=1e-3, atol=2e-5)
        np.testing.assert_allclose(found["nll_difference"][0, 0, :-1], nll, rtol=1e-3, atol=1e-4)
        self.assertTrue(np.isnan(found["nll_difference"][0, 0, -1]))
        same = (full.argmax(-1) == part.argmax(-1)).numpy()
        np.testing.assert_array_equal(found["top1_agreement"][0, 0], same)
        self.assertAlmostEqual(found["kl_divergence_mean"][0, 0],
                               found["kl_divergence"][0, 0].mean())
        np.testing.assert_array_equal(found["step"], np.arange(n, len(ids)))


class DroppedEntries(WithLoop):
    def test_shared_by_the_query_heads_of_a_kv_head(self):
        for family, layers in (("llama", [0, 1, 2, 3]), ("qwen2", [0, 2]), ("qwen3", [1])):
            with self.subTest(family):
                kept = random_sets(self.trace_of(family), layers, 1)
                self.check_against_pass(family, layers, kept)

    def test_of_every_query_head_by_itself(self):
        layers = [0, 1, 3]
        kept = random_sets(self.trace_of("llama"), layers, 2, per_query_head=True)
        self.check_against_pass("llama", layers, kept)

    def test_beside_sliding_layers_that_stay_untouched(self):
        # Softcap, two kinds of RoPE, sink logits; windows of 16 in layers 0 and 2.
        for family in ("gemma2", "gemma3", "gpt_oss"):
            with self.subTest(family):
                kept = random_sets(self.trace_of(family), [1, 3], 3)
                self.check_against_pass(family, [1, 3], kept)

    def test_of_sliding_layers_too(self):
        layers = [0, 1, 2, 3]
        for per_query_head in (False, True):
            kept = random_sets(self.trace_of("gemma2"), layers, 4, per_query_head)
            self.check_against_pass("gemma2", layers, kept)

    def test_of_several_caches_in_one_pass(self):
        layers, trace = [0, 1, 2, 3], self.trace_of("gemma2")
        sets = [random_sets(trace, layers, seed, share=share)
                for seed, share in ((7, 0.1), (8, 0.9), (9, 0))]
        together = self.values(self.run_loop(
            "gemma2", trace, write_results(self.folder / "three.nc", trace, layers, {"x": sets}),
            "--overwrite"))  # fmt: skip
        for i, one in enumerate(sets):
            results = write_results(self.folder / "one.nc", trace, layers, {"x": [one]})
            alone = self.values(self.run_loop("gemma2", trace, results, "--overwrite"))
            np.testing.assert_allclose(together["kl_divergence"][0, i],
                                       alone["kl_divergence"][0, 0], rtol=1e-3, atol=2e-5)

    def test_a_single_one_in_one_head_of_one_layer(self):
        trace = self.trace_of("llama")
        kept = np.ones_like(random_sets(trace, [2], 0))
        kept[0, 1, : kept.shape[2] // 2] = False
        self.check_against_pass("llama", [2], kept)

    def test_none_gives_no_loss_at_all(self):
        for family in ("llama", "gemma2", "gpt_oss"):
            trace = self.trace_of(family)
            kept = np.ones_like(random_sets(trace, [1, 3], 0))
            results = write_results(self.folder / "all.nc", trace, [1, 3], {"full": [kept]})
            found = self.values(self.run_loop(family, trace, results, "--overwrite"))
            self.assertLess(found["kl_divergence"].max(), 1e-10)
            self.assertLess(np.nanmax(np.abs(found["nll_difference"])), 1e-4)
            self.assertEqual(found["top1_agreement"].min(), 1)

    def test_as_kvsim_itself_saves_them(self):
        binary = os.environ.get("KVSIM_BIN", BUILT)
        trace, results = self.trace_of("llama"), self.folder / "real.nc"
        for policy, variable in (("snapkv,window=8", "kept_mask"),
                                 ("snapkv:official,window=8", "kept_mask_query")):
            subprocess.run([binary, "replay", trace, "--policy", policy, "--budget", "0.4",
                            "--save-keep", "-o", results, "--overwrite", "-q"], check=True)
            with h5py.File(results) as f:
                kept = f[variable][0, 0] == 1
            self.check_against_pass("llama", [0, 1, 2, 3], kept, results)


class ProbesInThePlaceOfTheLaterTokens(WithLoop):
    def setUp(self):
        super().setUp()
        questions = self.folder / "questions.txt"
        questions.write_text("Who said so?\tThe clerk, on the second page.\n", encoding="utf-8")
        self.trace = self.run_capture("llama", "--answer", self.answer, "--steps", 12, "--dtype",
                                      "float32", "--probe", f"file:{questions}")

    def test_losses_are_those_of_a_pass_over_the_probes_tokens(self):
        layers = [0, 2]
        kept = random_sets(self.trace, layers, 7)
        results = write_results(self.folder / "kept.nc", self.trace, layers, {"x": [kept]})
        with h5py.File(results, "r+") as f:
            f.attrs["later"] = "question1"
        found = self.values(self.run_loop("llama", self.trace, results, "--overwrite"))
        with h5py.File(self.trace) as f:
            n, probe = int(f.attrs["prompt_len"]), f["probes/question1"]
            ids = np.concatenate([f["tokens/id"][:n], probe["token_id"][:]])
            begin = int(probe.attrs["answer_begin"])
        folder = self.model_folder("llama")
        full = masked_pass(folder, ids, n, layers, None).log_softmax(-1)[n:]
        part = masked_pass(folder, ids, n, layers, kept).log_softmax(-1)[n:]
        kl = (full.exp() * (full - part)).sum(-1).numpy()
        self.assertGreater(kl.mean(), 1e-3)
        np.testing.assert_allclose(found["kl_divergence"][0, 0], kl, rtol=1e-3, atol=2e-5)
        self.assertAlmostEqual(found["kl_divergence_answer"][0, 0],
                               found["kl_divergence"][0, 0, begin - 1 :].mean())
        np.testing.assert_array_equal(found["step"], np.arange(n, len(ids)))

    def test_live_caches_take_the_probes_tokens_too(self):
        binary = os.environ.get("KVSIM_BIN", BUILT)
        results = self.folder / "real.nc"
        live = "snapkv,window=8,schedule=periodic,period=1000"   # never compresses again
        subprocess.run([binary, "replay", self.trace, "--later", "question1", "--policy",
                        "snapkv,window=8", "--policy", live, "--budget", "0.4", "--save-keep",
                        "-o", results, "--overwrite", "-q"], check=True)
        found = self.values(self.run_loop("llama", self.trace, results, "--overwrite", "--kvsim",
                                          binary))
        self.assertGreater(found["kl_divergence"][0, 0].mean(), 1e-3)
        np.testing.assert_allclose(found["kl_divergence"][1, 0], found["kl_divergence"][0, 0],
                                   rtol=1e-3, atol=2e-5)


class Generation(WithLoop):
    def test_agrees_with_greedy_tokens_of_passes_without_a_cache(self):
        family, layers, count = "llama", [0, 1, 2, 3], 10
        trace = self.trace_of(family)
        kept = random_sets(trace, layers, 5, share=0.7)
        everything = np.ones_like(kept)
        results = write_results(self.folder / "g.nc", trace, layers,
                                {"some": [kept], "full": [everything]})
        found = self.values(self.run_loop(family, trace, results, "--overwrite",
                                          "--generate", count))
        with h5py.File(trace) as f:
            n = int(f.attrs["prompt_len"])
            prompt = f["tokens/id"][:n].tolist()
        written = []
        for sets in (None, kept):
            ids = list(prompt)
            for _ in range(count):
                logits = masked_pass(self.model_folder(family), ids, n, layers, sets)
                ids.append(int(logits[-1].argmax()))
            written.append(ids[n:])
        agreed = next((i for i in range(count) if written[0][i] != written[1][i]), count)
        self.assertLess(agreed, count)
        self.assertEqual(found["generated_agreement"][:, 0].tolist(), [agreed, count])


class Runs(WithLoop):
    """Three policies at two budgets; the last one's sets are those of the first."""

    def study(self):
        trace = self.trace_of("llama")
        sets = [[random_sets(trace, [0, 2], seed + b) for b in range(2)] for seed in (10, 20)]
        results = write_results(self.folder / "six.nc", trace, [0, 2],
                                {"a": sets[0], "b": sets[1], "same-as-a": sets[0]})
        return trace, results

    def test_equal_sets_once_and_files_open_with_their_dimensions(self):
        trace, results = self.study()
        calls, own = [], loop_module.ClosedLoop.losses
        loop_module.ClosedLoop.losses = lambda this, sets: calls.extend(sets) or own(this, sets)
        try:
            target = self.run_loop("llama", trace, results, "--overwrite")
        finally:
            loop_module.ClosedLoop.losses = own
        self.assertEqual([(one.policy, one.budget) for one in calls],
                         [("a", "0.2"), ("b", "0.2"), ("a", "0.8"), ("b", "0.8")])   # by size
        with h5netcdf.File(target) as f:
            self.assertEqual(f.variables["kl_divergence"].dimensions, ("policy", "budget", "step"))
            self.assertEqual({v.attrs["units"] for n, v in f.variables.items() if "kl_" in n},
                             {"nat"})
            values = f.variables["kl_divergence"][...]
            self.assertEqual(f.attrs["model"], "llama")
        np.testing.assert_array_equal(values[0], values[2])
        self.assertFalse(np.array_equal(values[0], values[1]))
        one = self.values(self.run_loop("llama", trace, results, "--policy", "b", "--budget",
                                        "0.8", name="one.nc"))
        np.testing.assert_allclose(one["kl_divergence"][0, 0], values[1, 1], rtol=1e-4, atol=1e-7)

    def test_an_interrupted_one_goes_on_where_it_was(self):
        trace, results = self.study()
        whole = self.values(self.run_loop("llama", trace, results, name="whole.nc"))
        calls, own = [], loop_module.ClosedLoop.losses

        def interrupted(this, sets):
            calls.append(len(sets))
            if len(calls) == 2:
                raise KeyboardInterrupt
            return own(this, sets)

        own_batch = loop_module.ClosedLoop.batch
        loop_module.ClosedLoop.batch = 1
        try:
            loop_module.ClosedLoop.losses = interrupted
            target = self.run_loop("llama", trace, results, name="cut.nc", code=130)
            self.assertFalse(target.exists())
            journal = self.folder / "cut.nc.unfinished"
            with open(journal, "a") as file:
                file.write('{"policy": "a", "bud')
            other = write_results(self.folder / "other.nc", trace, [0, 2],
                                  {"c": [random_sets(trace, [0, 2], 9)]})
            self.run_loop("llama", trace, other, name="cut.nc", code=3)
            self.assertIn("left by a run with another", self.message)
            self.run_loop("llama", trace, results, name="cut.nc")
        finally:
            loop_module.ClosedLoop.losses, loop_module.ClosedLoop.batch = own, own_batch
        # One pair was finished, so that three sets were left; the fourth call is the second run's.
        self.assertEqual(len(calls), 5)
        self.assertFalse(journal.exists())
        found = self.values(target)
        for name in ("kl_divergence", "nll_difference", "top1_agreement"):
            np.testing.assert_allclose(found[name], whole[name], rtol=1e-4, atol=1e-6)


class Refusals(WithLoop):
    def one_set(self, trace, parameters=None):
        return write_results(self.folder / "r.nc", trace, [0], {"x": [random_sets(trace, [0], 1)]},
                             {"x": parameters or {}})

    def test_of_another_model(self):
        trace = self.trace_of("llama")
        self.run_loop("qwen2", trace, self.one_set(trace), name="no.nc", code=3)
        self.assertIn("captured from another model", self.message)

    def test_of_other_weights_of_the_same_shape(self):
        trace = self.trace_of("llama")
        other = transformers.AutoModelForCausalLM.from_pretrained(self.model_folder("llama"))
        with torch.no_grad():
            other.model.layers[0].mlp.up_proj.weight.mul_(3)
        folder = self.folder / "other_weights"
        other.save_pretrained(folder)
        tiny_models.make_tokenizer().save_pretrained(folder)
        self.run_loop("llama", trace, self.one_set(trace), "--model", folder, name="no.nc", code=3)
        self.assertIn("captured from other weights", self.message)

    def test_of_other_tokens_and_of_a_trace_without_any(self):
        trace = self.folder / "tokens.h5"
        trace.write_bytes(self.trace_of("llama").read_bytes())
        with h5py.File(trace, "a") as f:
            f["tokens/id"][3] += 1
        self.run_loop("llama", trace, self.one_set(trace), name="no.nc", code=3)
        self.assertIn("other tokens than the captured ones", self.message)
        with h5py.File(trace, "a") as f:
            del f["tokens/id"]
        self.run_loop("llama", trace, self.one_set(trace), name="no.nc", code=3)
        self.assertIn("tokens/id", self.message)

    def test_of_results_of_another_trace_or_without_sets(self):
        trace, other = self.trace_of("llama"), self.trace_of("qwen2")
        self.run_loop("llama", trace, self.one_set(other), name="no.nc", code=3)
        self.assertIn("made from another trace", self.message)
        results = self.one_set(trace)
        with h5py.File(results, "a") as f:
            del f["kept_mask"], f["kept_mask_query"]
        self.run_loop("llama", trace, results, name="no.nc", code=3)
        self.assertIn("--save-keep", self.message)
        self.run_loop("llama", trace, self.prompt, name="no.nc", code=3)
        self.run_loop("llama", trace, self.folder / "none.nc", name="no.nc", code=3)

    def test_of_wrong_usage(self):
        trace = self.trace_of("llama")
        results = self.one_set(trace)
        self.run_loop("llama", trace, results, "--policy", "y", name="no.nc", code=2)
        self.run_loop("llama", trace, results, "--budget", "0.3", name="no.nc", code=2)
        self.run_loop("llama", trace, results, "--generate", "0", name="no.nc", code=2)
        self.run_loop("llama", trace, results, name="kept_already.nc")
        self.run_loop("llama", trace, results, name="kept_already.nc", code=2)
        self.assertIn("--overwrite", self.message)
        self.run_loop("llama", trace, results, "--overwrite", name=results.name, code=2)


if __name__ == "__main__":
    unittest.main()
