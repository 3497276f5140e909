"""Do the probes of a capture hold what the model does behind the prompt? Judged by an untouched run
of the model over the prompt and one part, and by the format's own definition in float64.

Run: python3 tests/capture/test_probes.py; KVSIM_BIN=path/to/kvsim adds `kvsim verify` and `replay`.
"""

import os
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_capture import WithFolder, h5py, np, relative_error, transformers, untouched_run

QUESTIONS = "What does it ask for?\tTwo sentences.\nWho carried the oil?\n"


def outputs(layer, probe, tokens, root, n):
    """Attention output [Hq, part, dv] of a part: it sees the prompt and itself up to each token."""
    q = np.asarray(probe["q"][:, tokens], np.float64)
    k, v = (np.concatenate([layer[name][:, :n], probe[name][:, tokens]], 1).astype(np.float64)
            for name in "kv")  # fmt: skip
    scale = layer.attrs.get("attention_scale", root.attrs["attention_scale"])
    visible = np.arange(k.shape[1])[None, :] <= n + np.arange(q.shape[1])[:, None]
    found = []
    for head in range(len(q)):
        shared = head * len(k) // len(q)
        logits = np.where(visible, scale * q[head] @ k[shared].T, -np.inf)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        found.append(weights @ v[shared] / weights.sum(1, keepdims=True))
    return np.stack(found)


def gradients(folder, ids, n, adding="self_attn.o_proj", factor=1):
    """{layer: [part]}: norms of the gradient of the squared outputs of the last block, over the tokens
    from n on, with respect to what the attention adds: `factor` times the output of `adding`."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    added, blocks = {}, model.model.layers
    for index, block in enumerate(blocks):
        block.get_submodule(adding).register_forward_hook(
            lambda module, args, output, index=index: added.setdefault(index, output).retain_grad())
    last = []
    blocks[-1].register_forward_hook(
        lambda module, args, output: last.append(output[0] if isinstance(output, tuple) else output))
    model(torch.tensor([ids.tolist()]))
    last[0][0, n:].square().sum().backward()
    return {index: one.grad[0, n:].norm(dim=-1).numpy() / factor for index, one in added.items()}


class Probes(WithFolder):
    def capture(self, family, *specs, **options):
        wanted = [word for spec in specs for word in ("--probe", spec)]
        return self.run_capture(family, "--answer", self.answer, "--dtype", "float32", *wanted,
                                **options)  # fmt: skip

    def check(self, family):
        questions = self.folder / "questions.txt"
        questions.write_text(QUESTIONS, encoding="utf-8")
        trace = self.capture(family, "repeat:20", "repeat-text:40", "draft:6", f"file:{questions}")
        with h5py.File(trace) as f:
            self.assertEqual(set(f["probes"]), {"repeat", "repeat-text", "draft", "question1",
                                                "question2"})  # fmt: skip
            n, ids = int(f.attrs["prompt_len"]), f["tokens/id"][:]
            for name, probe in f["probes"].items():
                own = probe["token_id"][:]
                begins = [*probe["part_begin"][:], len(own)]
                for begin, end in zip(begins, begins[1:], strict=False):
                    tokens = slice(begin, end)
                    np.testing.assert_array_equal(probe["position"][tokens],
                                                  n + np.arange(end - begin))  # fmt: skip
                    whole = np.concatenate([ids[:n], own[tokens]])
                    seen, hidden = untouched_run(self.model_folder(family), whole)
                    for index, layer in ((int(one), f["layers"][one]) for one in f["layers"]):
                        held = layer["probes"][name]
                        truth = seen[index][0].reshape(len(whole), len(held["q"]), -1)
                        found = outputs(layer, held, tokens, f, n)
                        self.assertLess(
                            relative_error(found, truth.transpose(1, 0, 2)[:, n:]), 2e-5)
                        norms = np.linalg.norm(hidden[index][n:], axis=1)
                        self.assertLess(relative_error(held["residual_norm"][tokens], norms), 2e-5)
            self.check_parts(f, n, ids)
        return trace

    def check_parts(self, f, n, ids):
        repeat = f["probes/repeat"]
        np.testing.assert_array_equal(repeat["read_begin"][:], np.arange(0, n, 20))
        np.testing.assert_array_equal(repeat["read_end"][:],
                                      np.minimum(np.arange(20, n + 20, 20), n))
        ends = [*repeat["part_begin"][1:], len(repeat["token_id"])]
        for begin, end, last in zip(repeat["read_begin"], repeat["read_end"], ends, strict=True):
            np.testing.assert_array_equal(repeat["token_id"][last - (end - begin):last],
                                          ids[begin:end])   # the chunk itself, after the request
        self.assertEqual(len(f["probes/draft/token_id"]), 6)
        self.assertNotIn("answer_begin", f["probes/draft"].attrs)
        asked = f["probes/question1"]
        texts = list(asked["token_text"].asstr()[:])
        begin = int(asked.attrs["answer_begin"])
        self.assertIn("What does it ask for?", "".join(texts[:begin]))
        self.assertEqual("".join(texts[begin:]).strip(), "Two sentences.")

    def test_llama_with_grouped_queries(self):
        trace = self.check("llama")
        self.verify(trace)
        binary = os.environ.get("KVSIM_BIN")
        if not binary:
            return
        done = subprocess.run(
            [binary, "replay", str(trace), "--policy", "kvzip", "--policy", "rehearsal:reread",
             "--policy", "snapkv,queries=probe,probe=draft", "--budget", "0.3", "-o",
             str(self.folder / "r.nc")], capture_output=True, text=True)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        with h5py.File(trace, "r+") as f:
            f["layers/1/probes/repeat/q"][...] *= -1
        done = subprocess.run([binary, "verify", str(trace)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 4)
        self.assertIn("probe repeat", done.stdout)

    def test_qwen3_with_normed_queries(self):
        self.check("qwen3")

    def test_a_gate_comes_with_the_queries_of_a_probe(self):
        """One of Llama's attention, which no version has: the sigmoid of what enters it."""
        llama, gates = transformers.models.llama.modeling_llama, {}

        def gated(self, hidden_states, position_embeddings, attention_mask=None, **kwargs):
            shape = (*hidden_states.shape[:-1], -1, self.head_dim)
            query, key, value = (part(hidden_states).view(shape).transpose(1, 2)
                                 for part in (self.q_proj, self.k_proj, self.v_proj))
            query, key = llama.apply_rotary_pos_emb(query, key, *position_embeddings)
            attend = llama.ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
            output, weights = attend(self, query, key, value, attention_mask, scaling=self.scaling)
            gate = hidden_states.sigmoid()
            gates.setdefault(self.layer_idx, []).append(gate[0].numpy())
            return self.o_proj(output.reshape(gate.shape) * gate), weights

        with mock.patch.object(llama.LlamaAttention, "forward", gated):
            trace = self.capture("llama", "repeat:400")
        with h5py.File(trace) as f:
            n = int(f.attrs["prompt_len"])
            for index, layer in f["layers"].items():
                stored = layer["probes/repeat/gate"][:]   # [Hq, P, dv]
                tokens = stored.shape[1]
                real = next(one for one in gates[int(index)] if len(one) == n + tokens)[n:]
                self.assertLess(relative_error(stored, real.reshape(tokens, len(stored), -1)
                                               .transpose(1, 0, 2)), 1e-6)

    def test_gradients_are_those_of_an_untouched_run_without_a_cache(self):
        self.check_gradients("llama")
        self.check_gradients("gemma3", "post_attention_layernorm")
        self.check_gradients("granite", factor=0.22)

    def check_gradients(self, family, *adding, **factor):
        trace = self.capture(family, "repeat:20:gradient")
        with h5py.File(trace) as f:
            n, ids, probe = int(f.attrs["prompt_len"]), f["tokens/id"][:], f["probes/repeat"]
            own, begins = probe["token_id"][:], probe["part_begin"][:]
            self.assertGreater(len(begins), 1)
            for begin, end in zip(begins, [*begins[1:], len(own)], strict=True):
                found = gradients(self.model_folder(family), np.concatenate([ids[:n], own[begin:end]]),
                                  n, *adding, **factor)  # fmt: skip
                for index in f["layers"]:
                    stored = f[f"layers/{index}/probes/repeat/output_gradient"][begin:end]
                    self.assertGreater(stored.min(), 0)
                    self.assertLess(relative_error(stored, found[int(index)]), 1e-4)

    def test_what_is_asked_wrongly_is_refused_in_one_line(self):
        empty = self.folder / "empty.txt"
        empty.write_text("\n", encoding="utf-8")
        for specs, code, words in ((["repeat:0"], 2, "expected repeat"), (["draft"], 2, "draft:K"),
                                   (["repeat:gradient:4"], 2, "repeat[:CHUNK][:gradient]"),
                                   (["repeat", "repeat:5"], 2, "asked for twice"),
                                   ([f"file:{empty}"], 3, "no questions"),
                                   (["file:/no/such"], 3, "/no/such")):  # fmt: skip
            self.capture("llama", *specs, code=code)
            self.assertIn(words, self.message)


if __name__ == "__main__":
    unittest.main()
