"""Every causal language model family of the installed transformers against kvsim.

A tiny random model of each is captured, replayed and run again, and compared with itself
(kvsim/kvtrace/model_check.py). Prints a line a family; ends with 1 where one is wrong or ends in a
traceback. The page of models comes from such runs under several versions of transformers.
Run: python3 tests/capture/model_matrix.py [--only FAMILY,...] [--json OUT.json]
     python3 tests/capture/model_matrix.py --page docs/models.md OLD.json NEW.json
"""

import argparse
import json
import re
import sys
import time
import traceback
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python")]

PROMPT, LATER = 80, 12
WORDS = ("right", "in part", "refused", "wrong", "traceback", "not tried")
HEAD = "<!-- table: families, written by tests/capture/model_matrix.py -->"


def tokens() -> list[int]:
    import numpy as np

    return [int(one) for one in np.random.default_rng(3).integers(5, 256, PROMPT + LATER)]


def line_of_traceback(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (f"{type(error).__name__}: {' '.join(str(error).split())[:160]} "
            f"({Path(last.filename).name}:{last.lineno})")


def judge(family: str, tokenizer) -> tuple[str, str]:
    """One of WORDS, and why."""
    import torch

    import families
    from kvsim.kvtrace.model import LoadedModel
    from kvsim.kvtrace.model_check import check_model

    try:
        model = families.build(family)
        with torch.inference_mode():
            model(input_ids=torch.tensor([tokens()]), use_cache=False)
    except Exception as error:  # noqa: BLE001 families that do not stand on their own
        return "not tried", line_of_traceback(error)
    loaded = LoadedModel(model, tokenizer, f"tiny {family}", "random")
    try:
        verdict = check_model(loaded, tokens(), PROMPT)
    except Exception as error:  # noqa: BLE001 any is a fault
        return "traceback", line_of_traceback(error)
    return verdict.word, verdict.why()


def quiet():
    """One thread, no notes of transformers; returns the version and a tokenizer."""
    import torch
    import transformers

    import tiny_models

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    return transformers.__version__, tiny_models.make_tokenizer()


# Of reasons: names of classes and modules, numbers, and what else differs from family to family.
ITS_OWN = ((r"the trace: policy \S+ moves positions: found (.*), expected a trace with rope/inv_freq", r"\1"),
           (r"\blayer \d+( of \w+)?: (?=\S)", ""), (r"^[\w.]+ \(\w+\):? (?!\S+ goes?)", ""),
           (r"\b\w+(ForCausalLM|LMHeadModel|WithLMHead|ForConditionalGeneration|Decoder): ", ""),
           (r"\b\w+(ForCausalLM|LMHeadModel|ForConditionalGeneration) rotates", "it rotates"),
           (r"(listened to: )[\w, ]+ goe?s? past", r"\1it goes past"), (r"[\w.]+ is one of", "one of"),
           (r"has \d+ attentions, .*;", "has several attentions;"),
           (r" (by|moved by) [\d.e+-]+(?= \(|$|,)", ""), (r"positions moved by \d+", "other positions"),
           (r", which a trace cannot describe$", ""), (r" \(tolerance [^)]*\)", ""),
           (r"shapes \{.*\}, but earlier layers have \{.*\};", "layers of several shapes;"),
           (r"model\.layers\.\d+\.\w+\.(\w+) is given", r"\1 is given"),
           (r"its last \d+ layers", "its last layers"), (r": they differ$", ""),
           (r"^has ", "its attention has "), (r"(heads put out) differs$", r"\1"),
           (r"layers [\d, ]+ left out: \w+(; layers [\d, ]+ left out: \w+)*", "layers that are no attention are left out"))


def short(why: str) -> str:
    """A reason without what differs from family to family, fit for a cell of a table."""
    for own, common in ITS_OWN:
        why = re.sub(own, common, why)
    return re.sub(r"\s+", " ", why).replace("|", "/")[:240]


def table(runs: list[dict]) -> list[str]:
    """The page's table: a row for families alike, a column a version, and why they are not right."""
    versions = [run["version"] for run in runs]
    names = sorted({family for run in runs for family in run["families"]})
    alike: dict[tuple, list[str]] = {}
    lines = ["| family | " + " | ".join(versions) + " | what is not, or why |",
             "|---" * (len(runs) + 2) + "|"]
    for name in names:
        found = [run["families"].get(name) for run in runs]
        said = [one for one in found if one]
        newest = said[-1]
        reason = short(newest[1]) if newest[0] != "right" else \
            next((short(why) for word, why in said if word != "right"), "")
        alike.setdefault((*(one[0] if one else "" for one in found), reason), []).append(f"`{name}`")
    return lines + [f"| {', '.join(names)} | " + " | ".join(cells) + " |"
                    for cells, names in alike.items()]


def counts(runs: list[dict]) -> list[str]:
    lines = ["| transformers | families | " + " | ".join(WORDS) + " |",
             "|---" * (len(WORDS) + 2) + "|"]
    for run in runs:
        words = [word for word, _ in run["families"].values()]
        lines.append(f"| {run['version']} | {len(words)} | "
                     + " | ".join(str(words.count(word)) for word in WORDS) + " |")
    return lines


def write_page(page: Path, runs: list[dict]) -> None:
    """Puts the two tables in the place of those between the marks of the page."""
    text = page.read_text(encoding="utf-8")
    before = text[: text.index(HEAD)]
    after = text[text.index("<!-- end -->", len(before)):]
    body = "\n".join([HEAD, *counts(runs), "", *table(runs), ""])
    page.write_text(before + body + after, encoding="utf-8")


def read_page(page: Path) -> dict[str, dict[str, str]]:
    """{version: {family: word}} of a page."""
    text = page.read_text(encoding="utf-8")
    body = text[text.index(HEAD): text.index("<!-- end -->", text.index(HEAD))]
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in body.splitlines() if line.startswith("|") and "---" not in line]
    first = next(i for i, row in enumerate(rows) if row[0] == "family")
    versions = rows[first][1:-1]
    found: dict[str, dict[str, str]] = {version: {} for version in versions}
    for names, *words, _ in rows[first + 1:]:
        for version, word in zip(versions, words):
            if word:
                found[version].update((name.strip("`"), word) for name in names.split(", "))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="with --page: what --json wrote")
    parser.add_argument("--only", help="families, by commas")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    if args.page:
        write_page(args.page, [json.loads(one.read_text(encoding="utf-8")) for one in args.runs])
        return 0
    import families

    version, tokenizer = quiet()
    begun, found = time.time(), {}
    for family in args.only.split(",") if args.only else families.families():
        word, why = found[family] = judge(family, tokenizer)
        print(f"{family:28} {word:10} {why}", flush=True)
    words = [word for word, _ in found.values()]
    print(version, {word: words.count(word) for word in WORDS if word in words},
          f"{time.time() - begun:.0f} s")
    if args.json:
        args.json.write_text(json.dumps({"version": version, "families": found}, indent=1),
                             encoding="utf-8")
    return int("wrong" in words or "traceback" in words)


if __name__ == "__main__":
    sys.exit(main())
