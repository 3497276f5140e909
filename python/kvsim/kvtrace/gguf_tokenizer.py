"""The tokenizer of a GGUF file, from its own tokens, scores, kinds and merges, by `tokenizers`.

Vocabularies of SentencePiece, and byte-level ones whose split is known, are read here: what transformers makes of them
reads, by its version, another language, digits in another way or a token before every text, or it takes minutes. Other
byte-level ones are transformers', compared with the file."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

from ..errors import DataError, Error
from .gguf_file import GgufFile

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4   # of tokenizer.ggml.token_type
SPACE = "\u2581"
TOKENIZER, BESIDE = "tokenizer.json", "special.json"
TEXTS = ("The capital of France is Paris.", "  if (x[10] >= 2048):\n\treturn \"caf\u00e9\"\n\n",
         "\u6f22\u5b57 \u00e9\u0301 \U0001f642 12345, don't  WE'LL\u00a0go")
# How text is split before byte pairs are merged inside its pieces: by the names of tokenizer.ggml.pre.
SPLITS = {name: split for split in tomllib.loads(
    Path(__file__).with_name("gguf_splits.toml").read_text(encoding="utf-8"))["split"] for name in split["names"]}


def make_tokenizer(file: GgufFile, called: str, folder: Path, whole: Callable[[], Path]) -> None:
    """Makes the file's tokenizer in `folder`, for `read_tokenizer`. `called` is how errors name the
    file; `whole` gives the path of all its parts in one."""
    import transformers

    tokens = _tokens(file, called)
    kind, split = (file.text(f"tokenizer.ggml.{key}", "none") for key in ("model", "pre"))
    if kind == "llama" or (kind == "gpt2" and split in SPLITS):
        make = _sentencepiece if kind == "llama" else _byte_level
        made = make(file, called, tokens)
        count = made.get_vocab_size()
        if count != len(tokens) or [made.id_to_token(one) for one in range(count)] != tokens:
            raise refused(called, f"{count} tokens came out of {len(tokens)}")
        (folder / TOKENIZER).write_text(quick_to_read(made), encoding="utf-8")
        (folder / BESIDE).write_text(json.dumps(
            {**_special(file), "chat_template": file.text("tokenizer.chat_template")}))
    else:
        path = whole()
        made = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False)
        if kind == "gpt2":
            _compare(made, file, called, tokens)
        made.save_pretrained(folder)
        made = made.backend_tokenizer
    for text in TEXTS:
        back = made.decode(made.encode(text, add_special_tokens=False).ids)
        if back != text:
            raise refused(called, f"{text!r} came back as {back!r:.80}")


def quick_to_read(tokenizer) -> str:
    """A tokenizer as JSON in the form that `tokenizers` reads in half the time: keys in order, as it sorts
    them, no white space, and merges as strings where no token has a space of its own."""
    made = json.loads(tokenizer.to_str())
    merges = made["model"]["merges"]
    if not any(" " in part for pair in merges for part in pair):
        made["model"]["merges"] = [" ".join(pair) for pair in merges]
    return json.dumps(made, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def read_tokenizer(folder: Path):
    """A fast tokenizer of transformers from what `make_tokenizer` wrote."""
    import transformers

    if (folder / "tokenizer_config.json").is_file():
        return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / TOKENIZER), clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **json.loads((folder / BESIDE).read_text()))


def _tokens(file: GgufFile, called: str) -> list[str]:
    try:
        tokens = [one.decode() for one in file.array("tokens")]
    except (UnicodeDecodeError, AttributeError):
        raise refused(called, "a token is no text in UTF-8") from None
    if not tokens or len(set(tokens)) != len(tokens):
        raise refused(called, f"found {len(tokens)} tokens, {len(set(tokens))} of them different")
    return tokens


def _special(file: GgufFile) -> dict[str, str]:
    """The tokens that the file gives a part to: bos_token, eos_token, unk_token, pad_token."""
    tokens = file.array("tokens")
    found = {f"{name}_token": file.number(f"tokenizer.ggml.{key}_token_id") for name, key in (
        ("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))}
    return {name: tokens[number].decode() for name, number in found.items()
            if isinstance(number, int) and 0 <= number < len(tokens)}


def refused(called: str, why: str) -> Error:
    return DataError(f"{called}: no right tokenizer can be made from this GGUF file: {why}; give "
                     "the model as a folder with config.json, model.safetensors and "
                     "tokenizer.json, or try a newer transformers")


def _sentencepiece(file: GgufFile, called: str, tokens: list[str]):
    """Byte pairs merged by the scores of what they make, characters without a token as bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = file.array("scores")
    kinds = file.array("token_type") or [NORMAL] * len(tokens)
    if not len(tokens) == len(scores) == len(kinds):
        raise refused(called, f"found {len(tokens)} tokens, {len(scores)} scores and {len(kinds)} token types")
    tokenizer = Tokenizer(models.BPE(
        {token: number for number, token in enumerate(tokens)}, merges_of(tokens, scores, kinds),
        unk_token=_special(file).get("unk_token"), fuse_unk=True, byte_fallback=True))
    prefix = bool(file.number("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
         *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return _with_added(file, tokenizer, tokens, kinds, begins=True)


def _byte_level(file: GgufFile, called: str, tokens: list[str]):
    """The file's merges inside pieces of the split that it names."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    split = SPLITS[file.text("tokenizer.ggml.pre", "")]
    like_llama3 = split.get("like_llama3", False)
    tokenizer = _merging(file, called, tokens, ignore_merges=like_llama3)
    if split.get("composed"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*(pre_tokenizers.Split(Regex(one), behavior="isolated") for one in split["by"]),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = file.array("token_type") or [NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise refused(called, f"found {len(tokens)} tokens and {len(kinds)} token types")
    return _with_added(file, tokenizer, tokens, kinds, begins=like_llama3)


def _merging(file: GgufFile, called: str, tokens: list[str], **options):
    """Byte pairs merged in the order of the file's merges."""
    from tokenizers import Tokenizer, models

    merges = [tuple(one.decode().split(" ", 1)) for one in file.array("merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    try:
        return Tokenizer(models.BPE(vocabulary, merges, **options))
    except Exception as error:   # whatever the library raises of a part that is no token
        raise refused(called, str(error).splitlines()[0][:200]) from None


def _with_added(file: GgufFile, tokenizer, tokens: list[str], kinds, begins: bool):
    """Special and user-defined tokens are found whole, before anything is merged. `begins`: a text
    begins with a token where the file does not say whether it does."""
    from tokenizers import AddedToken, processors

    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)
                                  for token, one in zip(tokens, kinds) if one == CONTROL])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False)
                          for token, one in zip(tokens, kinds) if one == USER_DEFINED])
    # Tokens that begin and end a text, as far as the file asks for them.
    special = _special(file)
    first, last = ([special[name]] if name in special and file.number(f"tokenizer.ggml.{key}", default) else []
                   for name, key, default in (("bos_token", "add_bos_token", begins),
                                              ("eos_token", "add_eos_token", False)))
    if first or last:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last], pair=[*first, "$A", *last, *first, "$B:1", *last],
            special_tokens=[(one, tokenizer.token_to_id(one)) for one in {*first, *last}])
    return tokenizer


def merges_of(tokens: list[str], scores: list[float], kinds: list[int]) -> list[tuple[str, str]]:
    """Pairs of tokens that make a normal token, the highest score first; of equal scores the lower
    number. Tokens that a user defined are matched whole before anything is merged."""
    place = {token: number for number, token in enumerate(tokens) if kinds[number] == NORMAL}
    ordered = sorted(place, key=lambda token: (-scores[place[token]], place[token]))
    merges = []
    for token in ordered:
        parts = [(left, right) for cut in range(1, len(token))
                 if (left := token[:cut]) in place and (right := token[cut:]) in place]
        if len(parts) > 1:
            parts.sort(key=lambda one: (place[one[0]], place[one[1]]))
        merges += parts
    return merges


def _compare(made, file: GgufFile, called: str, tokens: list[str]) -> None:
    """Refuses a byte-level tokenizer with other tokens than the file's, or that merges texts in
    another way than the file does inside the same pieces."""
    found = made.convert_ids_to_tokens(list(range(len(tokens))))
    if wrong := [number for number, one in enumerate(tokens) if found[number] != one]:
        raise refused(called, f"token {wrong[0]} is {found[wrong[0]]!r:.40}, in the file {tokens[wrong[0]]!r:.40}")
    own = _merging(file, called, tokens)
    own.pre_tokenizer = made.backend_tokenizer.pre_tokenizer
    for text in TEXTS:
        found = made(text, add_special_tokens=False)["input_ids"]
        expected = own.encode(text, add_special_tokens=False).ids
        if found != expected:
            raise refused(called, f"{text!r} becomes {made.convert_ids_to_tokens(found)!r:.200}, by "
                          f"the file's merges {made.convert_ids_to_tokens(expected)!r:.200}")
