"""`cmake --install` puts together what works by itself: the installed program verifies the
installed sample, and `kvsim plot` draws with the installed figures, from another folder.
build/kvsim must have been built."""
import os
import pathlib
import stat
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "kvsim"


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.prefix = pathlib.Path(cls.folder.name) / "prefix"
        subprocess.run(["cmake", "--install", ROOT / "build", "--prefix", cls.prefix],
                       check=True, stdout=subprocess.DEVNULL)
        cls.share = cls.prefix / "share" / "kvsim"
        cls.compiled = list(cls.share.rglob("__pycache__"))   # before anything is run there

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def kvsim(self, *words, **environment):
        return subprocess.run([self.prefix / "bin" / "kvsim", *words], cwd=self.folder.name,
                              capture_output=True, text=True, env={**os.environ, **environment})

    def results(self):
        done = self.kvsim("replay", str(self.share / "data" / "sample.h5"), "--layers", "0",
                          "--policy", "snapkv", "--budget", "0.5", "-o", "one.nc", "--overwrite",
                          "-q")
        self.assertEqual(done.returncode, 0, done.stderr)
        return "one.nc"

    def test_everything_is_there_once(self):
        for name in ("plots/draw.py", "data/sample.h5", "data/capture.py", "data/closed_loop.py",
                     "python/kvsim/kvtrace/writer.py", "python/kvsim/plots/draw.py"):
            self.assertTrue((self.share / name).is_file(), name)
        self.assertEqual([], self.compiled)
        documents = self.prefix / "share" / "doc" / "kvsim"
        self.assertTrue((documents / "policies.md").is_file())
        self.assertTrue((documents / "LICENSE").is_file())

    def test_the_installed_program_verifies_the_installed_sample(self):
        done = self.kvsim("verify", str(self.share / "data" / "sample.h5"), "--layers", "0")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_plot_is_that_of_the_installed_package_and_not_that_of_the_source_tree(self):
        python = pathlib.Path(self.folder.name) / "python"
        python.write_text('#!/bin/sh\necho "${PYTHONPATH%%:*} $*"\n')
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        done = self.kvsim("plot", self.results(), "-o", "figs", KVSIM_PYTHON=str(python))
        self.assertEqual(done.stdout.strip(), f"{(self.share / 'python').resolve()} -P -m kvsim plot "
                                              "one.nc -o figs")

    def test_plot_draws(self):
        done = self.kvsim("plot", self.results(), "-o", "figs", "--only", "retained_importance",
                          KVSIM_PYTHON=str(CACHE / "plots" / "bin" / "python"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((pathlib.Path(self.folder.name) / "figs/retained_importance.png").is_file())

    def test_capture_teaches_itself(self):
        done = subprocess.run(["/usr/bin/python3", self.share / "data" / "capture.py", "--help"],
                              cwd=self.folder.name, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--model", done.stdout)


if __name__ == "__main__":
    unittest.main()
