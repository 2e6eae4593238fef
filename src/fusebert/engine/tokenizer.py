"""Text to token ids, by the `tokenizers` library: from tokenizer.json, or built from vocab.txt the way BERT's is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats.files import read_json
from fusebert.formats.tokenizer import read_tokenizer

Text = str | tuple[str, str]
_AT_ONCE = 256  # texts; the library does not look for interrupts


@dataclass(frozen=True)
class Tokens:
    """One tokenised text: ids, token types, and for each token its characters in the text it comes from, which is the
    first (0), the second (1), or none for special tokens; and whether the text was too long and is cut."""

    ids: list[int]
    kinds: list[int]
    spans: list[tuple[int, int]]
    sources: list[int | None]
    cut: bool = False


class Tokenizer:
    """Tokenises texts and pairs, cut to `max_length` tokens, never padded."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self._tokenizer, self.max_length = tokenizer, max_length
        try:
            tokenizer.no_padding()
            tokenizer.enable_truncation(max_length)
        except BaseException as error:
            raise _told(f"the tokenizer cannot cut texts to {max_length} tokens", error) from None

    @staticmethod
    def read(folder: Path, longest: int, max_length: int | None = None) -> Tokenizer | None:
        """The tokenizer of a model folder, or None where it has none; `longest` is what the model's positions allow."""
        tokenizers = _library()
        path = folder / "tokenizer.json"
        try:
            if path.is_file():
                tokenizer = tokenizers.Tokenizer.from_str(read_tokenizer(path))
            elif (path := folder / "vocab.txt").is_file():
                tokenizer = _from_vocabulary(path, _options(folder))
            else:
                return None
        except FusebertError:
            raise
        except BaseException as error:
            raise _told(f"{path} is not a readable tokenizer", error) from None
        return Tokenizer(tokenizer, max_length or _max_length(folder, longest))

    def __call__(self, texts: Iterable[Text], special: bool = True) -> list[Tokens]:
        """Tokens of every text, in order, with special tokens or without."""
        encodings = self._encode(self._tokenizer.encode_batch, texts, special)
        return [Tokens(e.ids, e.type_ids, e.offsets, e.sequence_ids, self._cut(e)) for e in encodings]

    def bare(self, texts: Iterable[Text]) -> list[Tokens]:
        """The same tokens in two thirds of the time, without where they stand in their texts."""
        encodings = self._encode(self._tokenizer.encode_batch_fast, texts, special=True)
        return [Tokens(e.ids, e.type_ids, [], [], self._cut(e)) for e in encodings]

    def _encode(self, encode: Callable[..., list[Any]], texts: Iterable[Text], special: bool) -> list[Any]:
        checked = [_checked(text) for text in texts]
        encodings: list[Any] = []
        try:
            for first in range(0, len(checked), _AT_ONCE):
                encodings += encode(checked[first : first + _AT_ONCE], add_special_tokens=special)
        except BaseException as error:
            raise _told("the tokenizer cannot encode these texts", error) from None
        if any(len(e) > self.max_length for e in encodings):
            raise FusebertError(f"the tokenizer's special tokens alone do not fit into {self.max_length} tokens")
        return encodings

    def _cut(self, encoding: Any) -> bool:
        return len(encoding) == self.max_length and bool(encoding.overflowing)

    def decode(self, ids: list[int], skip_special: bool = False) -> str:
        """Ids back to text, with or without special tokens."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special))

    def words(self, ids: list[int]) -> list[str]:
        """Each id as the vocabulary spells it."""
        return [str(self._tokenizer.id_to_token(i)) for i in ids]

    def text(self) -> str:
        """All that tokenizer.json would hold."""
        return str(self._tokenizer.to_str())

    def mask_id(self) -> int | None:
        """The id of the mask token, or None where there is none."""
        for token in ("[MASK]", "<mask>"):
            if (found := self._tokenizer.token_to_id(token)) is not None:
                return int(found)
        return None

    def unknown_id(self) -> int | None:
        """The id of the token for what is not in the vocabulary, or None where there is none."""
        for token in ("[UNK]", "<unk>"):
            if (found := self._tokenizer.token_to_id(token)) is not None:
                return int(found)
        return None

    def padding_id(self) -> int | None:
        """The id of the padding token, or None where there is none."""
        for token in ("[PAD]", "<pad>"):
            if (found := self._tokenizer.token_to_id(token)) is not None:
                return int(found)
        return None

    def save(self, path: Path) -> None:
        """Writes tokenizer.json."""
        path.write_text(self.text(), encoding="utf-8")


def list_texts(texts: Any) -> tuple[list[Any], bool]:
    """What a caller gives as texts, as a list, and whether it is a single text, whose answer is not to be a list.

    Texts are in any iterable, arrays of NumPy included, but for those without an order, and for a tuple of two strings:
    that is a pair among texts, and may be meant as one here too."""
    if getattr(texts, "ndim", None) is not None and hasattr(texts, "tolist"):  # an array, or a column of pandas
        texts = texts.tolist()
    if isinstance(texts, (str, Tokens)):
        return [texts], True
    if isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(text, str) for text in texts):
        raise FusebertError(
            "a tuple of two strings may be a pair or two texts: give [(first, second)] for the pair, or [first, second]"
        )
    if not isinstance(texts, Iterable) or isinstance(texts, (bytes, bytearray, Mapping, Set)):
        raise FusebertError(f"a text or a list of texts is expected, not {texts!r:.60}")
    return list(texts), False


def group_tokens(tokens: Sequence[Tokens], batch_tokens: int, batch_size: int | None = None) -> list[list[int]]:
    """Text numbers, longest texts first, in groups of about `batch_tokens` tokens and at most `batch_size` texts."""
    for name, value in (("batch_tokens", batch_tokens), ("batch_size", 1 if batch_size is None else batch_size)):
        if not isinstance(value, int) or value < 1:
            raise FusebertError(f"{name} must be at least 1")
    groups: list[list[int]] = []
    filled = 0
    for number in sorted(range(len(tokens)), key=lambda i: -len(tokens[i].ids)):
        if not groups or filled + len(tokens[number].ids) > batch_tokens or len(groups[-1]) == batch_size:
            groups.append([])
            filled = 0
        groups[-1].append(number)
        filled += len(tokens[number].ids)
    return groups


def _told(what: str, error: BaseException) -> BaseException:
    """The library raises bare Exceptions, and panics that are not even Exceptions; anything else, such as an
    interrupt, is passed on as it is."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return FusebertError(f"{what}: {error}")
    return error


def _library() -> Any:
    import tokenizers

    return tokenizers


def _checked(text: Any) -> Text:
    if isinstance(text, str):
        return text
    if isinstance(text, (tuple, list)) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return (text[0], text[1])
    raise FusebertError(f"a text is a string or a pair of strings, not {text!r:.60}")


def _options(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def _max_length(folder: Path, longest: int) -> int:
    limits = [_options(folder).get("model_max_length")]
    if (path := folder / "sentence_bert_config.json").is_file():
        limits.append(read_json(path).get("max_seq_length"))
    return min([longest, *(int(n) for n in limits if isinstance(n, (int, float)) and 2 < n < longest)])


def _from_vocabulary(path: Path, options: dict[str, Any]) -> Any:
    tokenizers = _library()
    words = path.read_text(encoding="utf-8").split("\n")
    vocabulary = {word.rstrip("\r"): i for i, word in enumerate(words) if word}
    special = {}
    for name in ("unk", "cls", "sep", "pad", "mask"):
        token = options.get(f"{name}_token", f"[{name.upper()}]")
        token = str(token.get("content") if isinstance(token, dict) else token)
        special[name] = token
        if token not in vocabulary:
            raise FusebertError(f"{path} has no line {token!r}, which is the {name} token")
    lower = bool(options.get("do_lower_case", True))
    strip = options.get("strip_accents")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token=special["unk"]))
    chinese = bool(options.get("tokenize_chinese_chars", True))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=lower, strip_accents=strip if isinstance(strip, bool) else None, handle_chinese_chars=chinese
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(
        (special["sep"], vocabulary[special["sep"]]), (special["cls"], vocabulary[special["cls"]])
    )
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.add_special_tokens(list(special.values()))
    return tokenizer
