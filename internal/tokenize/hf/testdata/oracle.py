"""Says what Python makes of the corpus, the conversations and the snippets beside this file.

Usage: oracle.py encode MODEL_DIR OUT [--mixes N]   ids by the package tokenizers
       oracle.py render OUT NAME=TEMPLATE...        renders by the package transformers
       oracle.py snippets OUT                       renders of snippets.json
       oracle.py classes MODEL_DIR...               whether AutoTokenizer gives tokenizer.json's ids
       oracle.py trim MODEL_DIR OUT_DIR MERGES      a small tokenizer of the same make

Outputs are JSON lines, read by the Go tests of this folder. Tokens of long texts are given by digest.
"""

import copy
import datetime
import hashlib
import json
import pathlib
import random
import struct
import sys

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2024, 7, 6, 15, 4, 5, 123456)
LONG = 400  # ids beyond which a digest stands for them


def load(name):
    return json.loads((HERE / name).read_text())


def dump(out, rows):
    with open(out, "w") as f:
        for r in rows:
            f.write(json.dumps(r) + "\n")


def long_texts():
    """Texts that are hard for encoders, as a piece and how often it is repeated."""
    yield "a", 1 << 20
    yield " ", 1 << 16
    yield "\n", 1 << 16
    yield "ab", 1 << 16
    yield "0", 1 << 16
    yield "!", 1 << 16
    yield "é", 1 << 15
    yield "你", 1 << 15
    yield "😀", 1 << 14
    yield "word ", 200_000
    yield "The quick brown fox jumps over the lazy dog. 你好 ", 2_000
    yield "x\0", 1 << 14


def mixes(seed, n, corpus, special):
    rng = random.Random(seed)
    pieces = [t for t in corpus if t] + ["\n", " ", "\t", "\0"]
    for _ in range(n):
        out = []
        for _ in range(rng.randint(1, 7)):
            kind = rng.random()
            if kind < 0.6:
                out.append(rng.choice(pieces))
            elif kind < 0.75 and special:
                out.append(rng.choice(special))
            elif kind < 0.85:
                t = rng.choice(pieces)
                out.append(t[rng.randrange(len(t)) :])
            else:
                out.append("".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(128, 0x3000)])) for _ in range(rng.randint(1, 12))))
        yield "".join(out)


def encode(model, out, n):
    from tokenizers import Tokenizer

    tok = Tokenizer.from_file(str(pathlib.Path(model) / "tokenizer.json"))
    tok.no_truncation()
    tok.no_padding()
    corpus = load("corpus.json")
    special = [t.content for _, t in sorted(tok.get_added_tokens_decoder().items())]
    special = special[:: max(1, len(special) // 200)]
    texts = [(t, 1) for t in corpus] + [("\n".join(corpus), 1)]
    texts += [(t, 1) for t in mixes(1, n, corpus, special)]
    if n > 100:
        texts += list(long_texts())
    rows = []
    for text, times in texts:
        for add in (False, True)[: 2 if times == 1 else 1]:
            ids = tok.encode(text * times, add_special_tokens=add).ids
            row = {"text": text, "times": times, "special": add, "n": len(ids)}
            if len(ids) <= LONG:
                row["ids"] = ids
            else:
                row["sha256"] = hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()
            rows.append(row)
    dump(out, rows)


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def chat_utils():
    import transformers.utils.chat_template_utils as c

    c.datetime = Clock
    return c


def render(out, templates):
    """Each conversation through apply_chat_template's steps. `vars` is what the template itself was given,
    `text` what it made of that, `final` what apply_chat_template returns."""
    c = chat_utils()
    compile_template = c._compile_jinja_template
    seen = {}

    def recording(source):
        real = compile_template(source)

        class Recorder:
            environment = real.environment

            def render(self, **variables):
                seen["vars"] = json.dumps(variables)
                seen["text"] = real.render(**variables)
                return seen["text"]

        return Recorder()

    c._compile_jinja_template = recording
    rows = []
    for name, path, special in templates:
        source = pathlib.Path(path).read_text() if special is None else path
        for conv in load("conversations.json"):
            request = copy.deepcopy(conv)
            request.pop("name")
            row = {"template": name, "conversation": conv["name"], "request": copy.deepcopy(request)}
            seen.clear()
            messages = c._normalize_chat_messages(request.pop("messages"))
            kwargs = dict(special or {"bos_token": "<s>", "eos_token": "</s>"})
            kwargs.update(request.pop("chat_template_kwargs", {}))
            try:
                texts, _ = c.render_jinja_template(
                    conversations=[messages], chat_template=source, tools=request.pop("tools", None),
                    documents=request.pop("documents", None), **request, **kwargs)
                row["final"] = texts[0]
            except Exception as e:  # templates raise what they like
                row["error"] = f"{type(e).__name__}: {e}"
            if "vars" in seen:
                rows.append({**row, **{k: seen[k] for k in seen}})
            else:
                rows.append(row)
    dump(out, rows)


def snippets(out):
    c = chat_utils()
    data = load("snippets.json")
    rows = []
    for t in data["templates"]:
        row = {"template": t}
        try:
            row["text"] = c._compile_jinja_template(t).render(**data["vars"])
        except Exception as e:
            row["error"] = f"{type(e).__name__}: {e}"
        rows.append(row)
    dump(out, rows)


def classes(models):
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    corpus = load("corpus.json")
    for m in models:
        try:
            auto = AutoTokenizer.from_pretrained(m)
        except Exception as e:
            print(f"{m}: AutoTokenizer refuses: {type(e).__name__}: {e}"[:200])
            continue
        tok = Tokenizer.from_file(str(pathlib.Path(m) / "tokenizer.json"))
        differ = sum(auto.encode(t, add_special_tokens=a) != tok.encode(t, add_special_tokens=a).ids
                     for t in corpus for a in (False, True))
        print(f"{m}: {type(auto).__name__}: {differ} of {2 * len(corpus)} differ")


def trim(model, out, merges):
    """Keeps the first merges and what they need, and renumbers: small, and built as the whole is."""
    model, out = pathlib.Path(model), pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    tok = json.loads((model / "tokenizer.json").read_text())
    m = tok["model"]
    m["merges"] = m["merges"][:merges]
    pairs = [tuple(p.split(" ")) if isinstance(p, str) else tuple(p) for p in m["merges"]]
    results = {a + b for a, b in pairs} | {x for p in pairs for x in p}
    keep = [t for t, _ in sorted(m["vocab"].items(), key=lambda kv: kv[1]) if len(t) == 1 or t in results]
    m["vocab"] = {t: i for i, t in enumerate(keep)}
    added = [t for t in tok["added_tokens"] if "placeholder" not in t["content"] and "place▁holder" not in t["content"]]
    renamed = {}
    for i, t in enumerate(added):
        old, t["id"] = t["id"], m["vocab"].get(t["content"], len(keep) + i)
        renamed[old] = t["id"]
    tok["added_tokens"] = added
    (out / "tokenizer.json").write_text(json.dumps(tok, ensure_ascii=False, separators=(",", ":")))
    config = json.loads((model / "tokenizer_config.json").read_text())
    if decoder := config.get("added_tokens_decoder"):
        config["added_tokens_decoder"] = {str(renamed[int(k)]): v for k, v in decoder.items() if int(k) in renamed}
    (out / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=1))


def special_of(model):
    config = json.loads((pathlib.Path(model) / "tokenizer_config.json").read_text())
    names = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
    special = {}
    for n in names:
        v = config.get(n)
        v = v.get("content") if isinstance(v, dict) else v
        if v:
            special[n] = v
    return config.get("chat_template"), special


def main(args):
    match args:
        case ["encode", model, out, *rest]:
            encode(model, out, int(rest[1]) if rest else 3000)
        case ["render", out, *named]:
            templates = []
            for n in named:
                name, path = n.split("=", 1)
                if pathlib.Path(path).is_dir():
                    source, special = special_of(path)
                    if source:
                        templates.append((name, source, special))
                else:
                    templates.append((name, path, None))
            render(out, templates)
        case ["snippets", out]:
            snippets(out)
        case ["classes", *models]:
            classes(models)
        case ["trim", model, out, merges]:
            trim(model, out, int(merges))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
