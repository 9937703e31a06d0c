#!/usr/bin/env python3
"""Cuts a tokenizer.json down to what given texts need, ids unchanged.

    pip install tokenizers
    tools/unicode/make_subset.py FULL/tokenizer.json tokens.jsonl presentation.safetensors > tokenizer.json

Kept are the 256 byte tokens, every token that occurs inside a piece of one of the texts, and every
merge between kept tokens. A merge left out could never have applied, so these texts get the ids of the
full vocabulary. Texts: "text" of a .jsonl table, "pieces" of a presentation, and all block times.
"""
import json
import struct
import sys

from tokenizers import Tokenizer


def texts_of(path):
    if path.endswith(".jsonl"):
        with open(path, encoding="utf-8") as f:
            return [json.loads(line)["text"] for line in f]
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    cases = json.loads(head["__metadata__"]["golden"])
    texts = [p for c in cases["cases"] for p in c["pieces"] if isinstance(p, str)]
    return texts + [c["prompt"] for c in cases["refused"]]


def main():
    full, *paths = sys.argv[1:]
    with open(full, encoding="utf-8") as f:
        spec = json.load(f)
    cut = Tokenizer.from_file(full)
    texts = [t for p in paths for t in texts_of(p)] + [f"<{i / 4:.1f} seconds>" for i in range(80)]
    pieces = {p for t in texts
              for p, _ in cut.pre_tokenizer.pre_tokenize_str(cut.normalizer.normalize_str(t))}
    vocab = spec["model"]["vocab"]
    longest = max(map(len, vocab))
    keep = {t for t, i in vocab.items() if len(t) == 1 and t.isprintable()}
    for p in pieces:
        if len(set(p)) == 1:
            p = p[:2 * longest]  # one letter over and over: no substring is lost
        keep |= {p[i:j] for i in range(len(p)) for j in range(i + 1, min(len(p), i + longest) + 1)
                 if p[i:j] in vocab}
    spec["model"]["vocab"] = {t: i for t, i in vocab.items() if t in keep}
    parts = lambda m: m.split(" ") if isinstance(m, str) else m
    spec["model"]["merges"] = [m for m in spec["model"]["merges"]
                               if set(parts(m)) <= keep and "".join(parts(m)) in keep]
    json.dump(spec, sys.stdout, ensure_ascii=False, separators=(",", ":"))


main()
