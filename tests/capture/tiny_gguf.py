"""Small GGUF files: a vocabulary of SentencePiece's kind and a random model of two layers. The rules
by which texts become tokens, plainly."""

from pathlib import Path

import gguf
import numpy as np
import regex

SPACE = "\u2581"
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
HIDDEN, HEADS, KV, SIZE, FEED, LAYERS = 32, 4, 2, 8, 48, 2


def vocabulary(generator: np.random.Generator, words: int = 150):
    """(tokens, scores, kinds): special ones, user-defined runs of spaces, bytes, letters, pieces."""
    letters = list("abcde.\n" + SPACE)
    pieces = dict.fromkeys(letters)
    while len(pieces) < words:   # of two earlier ones, so that all can be reached by merging
        pieces["".join(generator.choice(list(pieces), 2))] = None
    pieces = [one for one in pieces if one not in letters and len(one) < 9]
    user = ["  ", "   ", "    "]
    tokens = [*SPECIAL, *user, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *letters]
    scores = [-1000.0] * 7 + [0.0] * 256 + [-float(rank) for rank in range(len(pieces) + len(letters))]
    kinds = [CONTROL] * 4 + [USER_DEFINED] * 3 + [BYTE] * 256 + \
        [NORMAL] * (len(pieces) + len(letters))
    return tokens, scores, kinds


def write(path: Path, tokens, scores, kinds, prefix=False, begin=True, **further) -> Path:
    """A file of Qwen 2's architecture; `further` are calls of GGUFWriter with their argument."""
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    if scores is not None:
        writer.add_token_scores(scores)
    if kinds is not None:
        writer.add_token_types(kinds)
    for name, number in (("pad", 0), ("eos", 1), ("bos", 2), ("unk", 3)):
        getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_space_prefix(prefix)
    if begin is not None:
        writer.add_add_bos_token(begin)
    for name, value in further.items():
        getattr(writer, name)(value)
    generator = np.random.default_rng(1)
    shapes = {"token_embd.weight": (len(tokens), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        for name, shape in {"attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,),
                            "attn_q.weight": (HEADS * SIZE, HIDDEN), "attn_q.bias": (HEADS * SIZE,),
                            "attn_k.weight": (KV * SIZE, HIDDEN), "attn_k.bias": (KV * SIZE,),
                            "attn_v.weight": (KV * SIZE, HIDDEN), "attn_v.bias": (KV * SIZE,),
                            "attn_output.weight": (HIDDEN, HEADS * SIZE),
                            "ffn_gate.weight": (FEED, HIDDEN), "ffn_up.weight": (FEED, HIDDEN),
                            "ffn_down.weight": (HIDDEN, FEED)}.items():
            shapes[f"blk.{layer}.{name}"] = shape
    for name, shape in shapes.items():
        writer.add_tensor(name, generator.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def segments(text: str, tokens, scores, kinds, prefix=False) -> list[str]:
    """SentencePiece's rule, plainly: user-defined tokens whole, the longest first; then of two
    neighbours that make a token the pair with the highest score, the leftmost of equals."""
    user = sorted((t for t, k in zip(tokens, kinds) if k == USER_DEFINED), key=len, reverse=True)
    score = {t: s for t, s, k in zip(tokens, scores, kinds) if k == NORMAL}
    found: list[str] = []
    rest = ""

    def finish(part: str) -> None:
        part = (SPACE if prefix and part else "") + part.replace(" ", SPACE)
        symbols = list(part)
        while True:
            pairs = [(-score[a + b], i) for i, (a, b) in enumerate(zip(symbols, symbols[1:]))
                     if a + b in score]
            if not pairs:
                break
            at = min(pairs)[1]
            symbols[at:at + 2] = [symbols[at] + symbols[at + 1]]
        for one in symbols:
            found.extend([one] if one in score else [f"<0x{byte:02X}>" for byte in one.encode()])

    at = 0
    while at < len(text):
        whole = next((one for one in user if text.startswith(one, at)), None)
        if whole is None:
            rest += text[at]
            at += 1
        else:
            finish(rest)
            found.append(whole)
            rest, at = "", at + len(whole)
    finish(rest)
    return found


# GPT-2's split, behind one that leaves every digit alone.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LETTERS = [*range(33, 127), *range(161, 173), *range(174, 256)]   # bytes that stand for themselves
OTHERS = [byte for byte in range(256) if byte not in LETTERS]
SHOWN = {byte: chr(byte) for byte in LETTERS} | \
    {byte: chr(256 + number) for number, byte in enumerate(OTHERS)}


def byte_pairs(text: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Tokens of a byte-level vocabulary, digits alone: of the pairs inside a piece the one that was
    learned first, the leftmost of equals, until there is none."""
    found = []
    for part in regex.split(r"(\p{N})", text):
        for piece in regex.findall(GPT2, part):
            symbols = [SHOWN[byte] for byte in piece.encode()]
            while pairs := [(ranks[pair], at) for at, pair in enumerate(zip(symbols, symbols[1:]))
                            if pair in ranks]:
                at = min(pairs)[1]
                symbols[at:at + 2] = [symbols[at] + symbols[at + 1]]
            found += symbols
    return found
