"""From a conversation to tokens: chat template, tokenising, spans and the point of compression."""

import re
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

from ..errors import DataError, line_of
from .markup import Conversation, Turn

# Stand-ins for markers while the chat template runs: the last plane of private-use characters,
# which no tokenizer or template gives a meaning.
FIRST_SENTINEL = 0x100000
SENTINEL = re.compile("[\U00100000-\U0010fffd]")


@dataclass
class RenderedPrompt:
    """The text that is tokenised, with character offsets of what was marked in it."""

    text: str
    spans: list[tuple[str, int, int]]
    compress_at: int | None
    # True when the tokenizer still has to add its own special tokens (no chat template).
    add_special_tokens: bool


@dataclass
class TokenizedPrompt:
    """Token ids up to where generation starts, and what the trace says about them."""

    ids: list[int]
    # n: with no <compress/> and no answer, all of `ids`.
    prompt_len: int
    spans: list[tuple[str, int, int]]
    # First token that is not of the prompt, what follows <compress/> in it included.
    answer_begin: int


def _apply_template(tokenizer, turns: list[Turn], texts: list[str], generate: bool) -> str:
    messages = [{"role": turn.role, "content": text} for turn, text in zip(turns, texts)]
    continues = generate and turns[-1].role == "assistant"
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False,
                                             add_generation_prompt=generate and not continues,
                                             continue_final_message=continues)
    except Exception as error:  # templates raise whatever their authors chose
        raise DataError(f"the model's chat template refuses this prompt: {line_of(error)}") from None


def _follow(tokenizer, turns: list[Turn]) -> tuple[str, dict[tuple[int, int], int]]:
    """The rendered text, and the offset in it of every marker, by turn and offset there. One character
    stands for each marker while the template runs, numbered in order of appearance."""
    marks, texts = [], []
    for at, turn in enumerate(turns):
        if SENTINEL.search(turn.text):
            raise DataError("the prompt holds private-use characters of Unicode's plane 16")
        offsets = {offset for _, begin, end in turn.spans for offset in (begin, end)}
        offsets = sorted(offsets | ({turn.compress_at} - {None}))
        pieces = [turn.text[begin:end] for begin, end in pairwise([0, *offsets, len(turn.text)])]
        texts.append(pieces[0] + "".join(chr(FIRST_SENTINEL + number) + piece
                                         for number, piece in enumerate(pieces[1:], len(marks))))
        marks += [(at, offset) for offset in offsets]
    marked, found = _apply_template(tokenizer, turns, texts, True), {}
    for passed, sentinel in enumerate(SENTINEL.finditer(marked)):
        mark = marks[ord(sentinel[0]) - FIRST_SENTINEL]
        if mark in found:
            raise DataError("the chat template repeats a text that holds markers")
        found[mark] = sentinel.start() - passed
    if len(found) < len(marks):
        raise DataError("the chat template leaves out a text that holds markers")
    text = SENTINEL.sub("", marked)
    if text != _apply_template(tokenizer, turns, [turn.text for turn in turns], True):
        raise DataError("the chat template changes the prompt when markers stand in it")
    return text, found


def render(tokenizer, conversation: Conversation, raw: bool) -> RenderedPrompt:
    """Applies the chat template, unless `raw` or the tokenizer has none, and follows the markers.

    A conversation without <turn> markers is one user turn. Raises Error when the template
    cannot be followed, for instance because it has no system role."""
    turns = conversation.turns
    if raw or getattr(tokenizer, "chat_template", None) is None:
        if len(turns) > 1 or turns[0].role is not None:
            reason = "--raw was given" if raw else "this tokenizer has no chat template"
            raise DataError(f"the prompt has turns with roles, but {reason}")
        only = turns[0]
        return RenderedPrompt(only.text, only.spans, only.compress_at, add_special_tokens=True)

    turns = [Turn(t.role or "user", t.text, t.spans, t.compress_at) for t in turns]
    text, offsets = _follow(tokenizer, turns)
    spans = [(name, offsets[at, begin], offsets[at, end])
             for at, turn in enumerate(turns) for name, begin, end in turn.spans]
    compress_at = next((offsets[at, turn.compress_at] for at, turn in enumerate(turns)
                        if turn.compress_at is not None), None)
    if conversation.compress_after is not None:
        compress_at = _end_of_turns(tokenizer, turns, conversation.compress_after, text)
    return RenderedPrompt(text, spans, compress_at, add_special_tokens=False)


def _end_of_turns(tokenizer, turns: list[Turn], count: int, full_text: str) -> int:
    """Where the rendered text of the first `count` turns ends, end-of-turn marks included."""
    if count == 0:
        raise DataError("<compress/> before the first turn leaves nothing to compress")
    first = _apply_template(tokenizer, turns[:count], [t.text for t in turns[:count]], False)
    if not full_text.startswith(first):
        raise DataError(
            "this chat template does not render the first turns as a prefix of the whole chat; "
            "put <compress/> inside a turn instead")
    return len(first)


def _anchors(text: str, offsets: list[tuple[int, int]]) -> list[int]:
    """For each token the character that decides where it belongs.

    That is its first character that is not white space, since most tokenizers glue the space
    before a word to the word. A token without characters (an added BOS) belongs before all text."""
    return [begin + len(piece) - len(piece.lstrip()) if (piece := text[begin:end]).strip() else
            begin if begin > 0 or end > begin else -1 for begin, end in offsets]


def tokenize(tokenizer, prompt: RenderedPrompt, answer: str = "") -> TokenizedPrompt:
    """Tokenises prompt and answer as one text and maps spans and the compression point to tokens.

    The prompt ends (prompt_len) at <compress/>, else where the answer begins, else at the end."""
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(f"{type(tokenizer).__name__} gives no character offsets: a fast tokenizer is needed")
    text = prompt.text + answer
    encoded = tokenizer(text, add_special_tokens=prompt.add_special_tokens, return_offsets_mapping=True)
    ids = list(encoded["input_ids"])
    anchors = _anchors(text, encoded["offset_mapping"])
    boundary = len(prompt.text) if prompt.compress_at is None else prompt.compress_at
    prompt_len = bisect_left(anchors, boundary)
    if prompt_len == 0:
        raise DataError("no tokens before the compression point: nothing to compress")

    spans = []
    for name, begin, end in prompt.spans:
        first, last = bisect_left(anchors, begin), bisect_left(anchors, end)
        if first == last:
            raise DataError(f'span "{name}" is too short: no token begins in it')
        if last > prompt_len:
            raise DataError(
                f'span "{name}" covers tokens {first}..{last - 1}, but the prompt is compressed '
                f"at token {prompt_len}; spans lie before <compress/>")
        spans.append((name, first, last))
    spans.sort(key=lambda span: (span[1], -span[2]))   # of equal begins the longer first
    return TokenizedPrompt(ids, prompt_len, spans, bisect_left(anchors, len(prompt.text)))


def token_texts(tokenizer, ids: list[int], context: int = 8) -> list[str]:
    """The text each token adds; joined, the pieces give the whole text.

    Decoding a token alone loses the space before a word with some tokenizers and cannot show half
    a character, so each is decoded after a few others. Of the tokens that share one character,
    the last has it and the others are empty."""
    def decode(part: list[int]) -> str:
        text = tokenizer.decode(part, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text.rstrip("\ufffd")

    texts = []
    for i in range(len(ids)):
        begin = max(0, i - context)
        before = decode(ids[begin:i]) if i > begin else ""
        piece = decode(ids[begin : i + 1])[len(before) :]
        # HDF5 strings end at a NUL; show the control picture for it instead.
        texts.append(piece.replace("\0", "\u2400"))
    return texts
