"""Trains the tokenizer of the tiny model on this repository's own texts.

    python internal/tinymodel/train.py          # from the repository's root; needs PyPI's tokenizers

The same texts give the same file: the trainer counts, and settles ties by the order of ids. The texts
change with the project, so the committed file is what counts; nothing trains at build time.
"""

import json
import pathlib
import subprocess
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 4096
# The split of words, numbers and white space that most current models use; no normalizer.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


def corpus(root: pathlib.Path) -> list[str]:
    names = subprocess.run(
        ["git", "ls-files", "-z", "*.md", "*.go", "*.txtar", "*.yaml"], cwd=root, capture_output=True, check=True
    ).stdout.decode()
    return [(root / n).read_text("utf-8") for n in sorted(names.split("\0")) if n]


def main() -> None:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    out = pathlib.Path(__file__).parent / "model"
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIAL) - len(PLAIN),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tok.train_from_iterator(corpus(root), trainer)
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    if tok.get_vocab_size() != VOCAB:
        sys.exit(f"{tok.get_vocab_size()} tokens, want {VOCAB}: the texts are too small")
    doc = json.loads(tok.to_str())
    (out / "tokenizer.json").write_text(json.dumps(doc, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main()
