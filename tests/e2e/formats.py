#!/usr/bin/env python3
"""Forms of checkpoints from the outside: adapters, quantized and odd parts, vocabularies in GGUF
metadata, poisoned weights. Files are made here from the small model of the tests.

    tests/e2e/formats.py PATH-TO-h3av SOURCE-DIR
"""
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile

SMALL = ["-s", "64x32", "-f", "22", "--steps", "3", "-j", "1"]
passed, failed = 0, 0


def check(name, is_right, detail=""):
    global passed, failed
    passed, failed = passed + bool(is_right), failed + (not is_right)
    if not is_right:
        print(f"FAIL {name}: {detail}")


# ---- files

def read_safetensors(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        head = json.loads(f.read(n))
        data = f.read()
    head.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for k, v in head.items()}


def write_safetensors(path, tensors, meta=None):
    head, data = {"__metadata__": meta} if meta else {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def waves(shape, scale, start=0):
    n = math.prod(shape)
    return "F32", list(shape), struct.pack(f"<{n}f", *(scale * math.sin(0.7 * i + start) for i in range(n)))


def adapter(form, hidden=96, inner=128, layers=3, rank=4):
    """A LoRA of the small transformer: attention's way out in every block."""
    out = {}
    for i in range(layers):
        a, b = waves((rank, inner), 0.3, i), waves((hidden, rank), 0.3, i + 1)
        if form == "kohya":
            key = f"lora_unet_blocks_{i}_attn_out_proj"
            out[f"{key}.lora_down.weight"], out[f"{key}.lora_up.weight"] = a, b
            out[f"{key}.alpha"] = ("F32", [], struct.pack("<f", rank))
        else:
            key = f"transformer.transformer_blocks.{i}.attn.to_out.0"
            out[f"{key}.lora_A.weight"], out[f"{key}.lora_B.weight"] = a, b
    return out


def gguf_vocabulary(path, folder, drop=()):
    """The tokenizer in `folder` as the metadata of a GGUF without tensors."""
    with open(os.path.join(folder, "tokenizer.json")) as f:
        t = json.load(f)
    tokens = {v: (k, 1) for k, v in t["model"]["vocab"].items()}
    tokens.update({a["id"]: (a["content"], 3) for a in t["added_tokens"]})
    last = max(tokens)
    merges = [m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]]

    def text(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()

    def pair(key, kind, value):
        return text(key) + struct.pack("<I", kind) + value

    def strings(items):
        return struct.pack("<IQ", 8, len(items)) + b"".join(map(text, items))

    rows = [tokens.get(i, (f"[PAD{i}]", 5)) for i in range(last + 9)]  # padded, as converters do
    pairs = {"general.architecture": (8, text("qwen3vl")), "tokenizer.ggml.model": (8, text("gpt2")),
             "tokenizer.ggml.pre": (8, text("qwen2")),
             "tokenizer.ggml.tokens": (9, strings([r[0] for r in rows])),
             "tokenizer.ggml.token_type": (9, struct.pack("<IQ", 5, len(rows)) + struct.pack(f"<{len(rows)}i", *(r[1] for r in rows))),
             "tokenizer.ggml.merges": (9, strings(merges))}
    body = [pair(k, *v) for k, v in pairs.items() if k not in drop]
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(body)) + b"".join(body))


# ---- the program

class Program:
    def __init__(self, h3av, model, work):
        self.h3av, self.model, self.work = h3av, model, work

    def __call__(self, *args):
        p = subprocess.run([self.h3av, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.work)
        return p.returncode, p.stdout.decode(), p.stderr.decode()

    def generate(self, out, *args):
        return self("generate", "-p", "a red circle", *SMALL, "-m", self.model, "-o", out, *args)

    def refuses(self, name, status, words, *args):
        got, _, err = self.generate("refused.mp4", *args)
        lines = [x for x in err.splitlines() if x.startswith("h3av: ")]
        check(name, got == status and len(lines) == 1 and all(w in lines[0] for w in words)
              and not os.path.exists(os.path.join(self.work, "refused.mp4")), f"{got} {err.strip()[-300:]}")
        return lines[0] if lines else ""

    def bytes_of(self, name):
        with open(os.path.join(self.work, name), "rb") as f:
            return f.read()


def adapters(h, dit):
    path = os.path.join(h.work, "l.safetensors")
    check("without adapter", h.generate("base.mp4")[0] == 0)
    for form in ("kohya", "diffusers"):
        write_safetensors(path, adapter(form))
        status, out, err = h.generate(f"{form}.mp4", "--lora", f"{path}:0.8")
        alpha = "4..4" if form == "kohya" else "none"
        check(f"{form} keys", status == 0 and f"3 of 3 modules matched, rank 4..4, alpha {alpha}, strength 0.8" in out + err, out + err)
        check(f"{form} changes the video", h.bytes_of(f"{form}.mp4") != h.bytes_of("base.mp4"))
    check("the same adapter in two forms", h.bytes_of("kohya.mp4") == h.bytes_of("diffusers.mp4"))
    status, out, err = h.generate("half.mp4", "--lora", f"{path}:0.8", "--lora-alpha", "2")
    check("alpha as given", status == 0 and "alpha 2..2" in out + err, out + err)
    check("and used", h.bytes_of("half.mp4") not in (h.bytes_of("base.mp4"), h.bytes_of("diffusers.mp4")))
    status, _, err = h.generate("twice.mp4", "--lora", f"{path}:1.6", "--lora-alpha", "2")
    check("half the alpha at twice the strength", status == 0 and h.bytes_of("twice.mp4") == h.bytes_of("diffusers.mp4"), err)
    status, _, err = h.generate("none.mp4", "--lora", f"{path}:0.8", "--lora", f"{path}:-0.8")
    check("several with strengths", status == 0, err)
    strange = adapter("kohya")
    for k in [k for k in strange if "_1_" in k]:
        strange[k.replace("_1_", "_7_")] = strange.pop(k)
    write_safetensors(path, strange)
    status, out, err = h.generate("part.mp4", "--lora", path)
    check("unmatched keys are listed", status == 0 and "2 of 3 modules" in out + err and "blocks_7" in out + err, out + err)
    h.refuses("--strict", 4, ["l.safetensors", "blocks_7"], "--lora", path, "--strict")
    write_safetensors(path, {k.replace("blocks", "layers"): v for k, v in adapter("kohya").items()})
    h.refuses("no match at all", 4, ["l.safetensors"], "--lora", path)
    # a schedule of its own: from a sidecar, from metadata, never twice
    write_safetensors(path, adapter("kohya"))
    with open(os.path.join(h.work, "l.json"), "w") as f:
        json.dump({"sigmas": [1, 0.8, 0.5, 0.2, 0], "shift": 6, "audio_shift": 3}, f)
    args = ["generate", "-p", "x", "-s", "64x32", "-f", "22", "-j", "1", "-m", h.model, "-o", "few.mp4"]
    status, out, err = h(*args, "--lora", path)
    check("schedule from a sidecar", status == 0 and "5 sigma points = 4 forwards" in out + err, out + err)
    second = os.path.join(h.work, "m.safetensors")
    write_safetensors(second, adapter("kohya"), {"h3_schedule": json.dumps({"steps": 4, "shift": 12})})
    status, out, err = h(*args, "--lora", second)
    check("schedule from metadata", status == 0 and "4 sigma points = 3 forwards" in out + err, out + err)
    h.refuses("two schedules", 2, ["schedule"], "--lora", path, "--lora", second)
    with open(os.path.join(h.work, "l.json"), "w") as f:
        f.write('{"sigmas": [1, 1.5, 0]}')
    h.refuses("a broken sidecar", 4, ["l.json", "sigma"], "--lora", path)
    os.unlink(os.path.join(h.work, "l.json"))
    # quantized bases
    check("convert to Q8_0", h("convert", dit, "--to", "q8_0", "-o", "q.gguf")[0] == 0)
    status, out, err = h.generate("ql.mp4", "--dit", "q.gguf", "--lora", path)
    check("on a quantized base", status == 0 and "3 of 3" in out + err, out + err)
    return path


def quantized(h, lora):
    said = {}
    same = ["--cpu-math", "f32"]  # auto may multiply by stored weights in another way than by f32
    h.generate("ql.mp4", "--dit", "q.gguf", "--lora", lora, *same)
    for how in (["--quant", "auto"], ["--quant", "keep"], ["--keep-quant"], ["--quant", "expand"], ["--expand"]):
        status, out, err = h.generate("k.mp4", "--dit", "q.gguf", "--lora", lora, *same, *how)
        line = [x for x in (out + err).splitlines() if "quantized weights:" in x]
        check(f"{how}", status == 0 and len(line) == 1, out + err)
        check(f"{how}: the same video", h.bytes_of("k.mp4") == h.bytes_of("ql.mp4"))
        said[how[-1]] = line[0] if line else ""
    check("kept by itself, and why", "kept as stored" in said["auto"] and "decoding" in said["auto"], said)
    check("kept on request", "kept as stored" in said["keep"] and "as asked for" in said["--keep-quant"], said)
    check("expanded on request", "decoded at load" in said["expand"] and "as asked for" in said["--expand"], said)
    check("plan says it too", json.loads(h("plan", "-p", "x", "-m", h.model, "--dit", "q.gguf", "--expand", "--json")[1])
          ["memory"]["quantized"]["choice"] == "expand")


def orders(h, dit):
    """Rows whose sizes tell the order: taken the other way they are doubted, by inspect and by a run."""
    check("plain values", h("dump", dit, "--all", "-o", "plain.safetensors")[0] == 0)
    t = read_safetensors(os.path.join(h.work, "plain.safetensors"))
    for name, (dtype, shape, raw) in t.items():
        if "qkv_proj" in name:
            v, third = struct.unpack(f"<{len(raw) // 4}f", raw), len(raw) // 12
            t[name] = (dtype, shape, struct.pack(f"<{len(v)}f", *(x * (4, 1, 0.25)[i // third] for i, x in enumerate(v))))
    for order, is_doubted in (("stacked", False), ("interleaved", True)):
        write_safetensors(os.path.join(h.work, "order.safetensors"), t, {"h3av.qkv": order})
        out = h("inspect", "order.safetensors")[1]
        check(f"inspect says {order}", f"q/k/v rows: {order}" in out and ("WARNING" in out) == is_doubted, out)
        status, out, err = h.generate("order.mp4", "--dit", "order.safetensors")
        check(f"a run with {order}", status == 0 and ("does not look right" in out + err) == is_doubted, out + err)
    status, out, err = h.generate("right.mp4", "--dit", "order.safetensors", "--qkv", "stacked")
    check("overridden", status == 0 and "does not look right" not in out + err
          and h.bytes_of("right.mp4") != h.bytes_of("order.mp4"), out + err)


def strangers(h, dit):
    index = json.load(open(os.path.join(dit, "model.safetensors.index.json")))
    folder = os.path.join(h.work, "odd")
    shutil.copytree(dit, folder)
    name = sorted(set(index["weight_map"].values()))[0]
    t = read_safetensors(os.path.join(folder, name))
    t["blocks.0.attn.to_gate_compress.weight"] = waves((2, 2), 1)
    index["weight_map"]["blocks.0.attn.to_gate_compress.weight"] = name
    write_safetensors(os.path.join(folder, name), t)
    json.dump(index, open(os.path.join(folder, "model.safetensors.index.json"), "w"))
    status, out, err = h.generate("odd.mp4", "--dit", folder)
    check("a stranger is told", status == 0 and "warning" in out + err and "to_gate_compress" in out + err, out + err)
    check("and changes nothing", h.bytes_of("odd.mp4") == h.bytes_of("base.mp4"))


def packed(h, dit):
    """Forms of other programs are refused by their names, with what to take instead."""
    plain = read_safetensors(os.path.join(h.work, "plain.safetensors"))
    name, stem = "blocks.0.attn.qkv_proj.weight", "blocks.0.attn.qkv_proj"
    rows, cols = plain[name][1]

    def zeros(size, dtype, *shape):
        return dtype, list(shape), bytes(int(math.prod(shape) * size))

    words = {name: zeros(4, "U32", rows, cols // 8), f"{stem}.scales": zeros(2, "BF16", rows, 2)}
    cases = [("MLX", words, ["U32", "packed by MLX", "BF16"]),
             ("words of nobody", {name: zeros(4, "U32", rows, cols // 8)}, ["dtype U32 is not read", "GGUF"]),
             ("F4", {name: zeros(.5, "F4", rows, cols)}, ["dtype F4 is not read", "GGUF"]),
             ("FNUZ", {name: zeros(1, "F8_E4M3FNUZ", rows, cols)}, ["dtype F8_E4M3FNUZ is not read"]),
             ("U16", {name: zeros(2, "U16", rows, cols)}, ["dtype U16 is not read", "bits of BF16"]),
             ("bitsandbytes 4", {name: zeros(1, "U8", rows * cols // 2, 1), f"{name}.quant_state.bitsandbytes__nf4": zeros(1, "U8", 9)},
              ["bitsandbytes (NF4)", "GGUF"]),
             ("bitsandbytes 8", {name: zeros(1, "I8", rows, cols), f"{stem}.SCB": zeros(4, "F32", rows)}, ["bitsandbytes (INT8)"]),
             ("GPTQ", {f"{stem}.qweight": zeros(4, "I32", cols // 8, rows), f"{stem}.qzeros": zeros(4, "I32", 1, rows // 8)},
              ["GPTQ or AWQ"]),
             ("quanto", {f"{name}._data": zeros(1, "I8", rows, cols), f"{name}._scale": zeros(2, "BF16", rows, 1)}, ["quanto"])]
    for what, tensors, said in cases:
        t = {k: v for k, v in plain.items() if k != name} | tensors
        write_safetensors(os.path.join(h.work, "packed.safetensors"), t)
        h.refuses(what, 7, ["packed.safetensors", stem, "is not read" if "not read" in said[0] else "are not read", *said],
                  "--dit", "packed.safetensors")
        if what == "GPTQ":
            status, out, err = h("inspect", "packed.safetensors")
            check("inspect goes on", status == 0 and "PROBLEM: " in out and "GPTQ or AWQ" in out, out + err)
            status, out, err = h("convert", "packed.safetensors", "-o", "refused.safetensors")
            check("convert says it too", status == 7 and "GPTQ or AWQ" in err, err)


def vocabularies(h):
    folder = os.path.join(h.model, "FL2VA", "tokenizer")
    text = "A <|vision_start|> na\u00efve  test: 12345 <d>hello</d>\n"
    gguf_vocabulary(os.path.join(h.work, "v.gguf"), folder)
    pieces = [json.loads(h("tokenize", "--tokenizer", folder, t)[1])["ids"] for t in text.replace("</d>", "<d>").split("<d>")]
    status, out, err = h("tokenize", "--tokenizer", "v.gguf", text)
    got = json.loads(out)["ids"] if status == 0 else []
    first = len(pieces[0])
    check("vocabulary of a GGUF, with the dialogue tokens", got[first + 1:-2] == pieces[1] and got[:first] == pieces[0]
          and got[first + 1 + len(pieces[1])] == got[first] + 1 and got[-1:] == pieces[2], (pieces, out, err))
    gguf_vocabulary(os.path.join(h.work, "w.gguf"), folder, drop=("tokenizer.ggml.token_type",))
    status, out, err = h("tokenize", "--tokenizer", "w.gguf", "A na\u00efve test")
    want = json.loads(h("tokenize", "--tokenizer", folder, "A na\u00efve test")[1])["ids"]
    check("without token types", status == 0 and json.loads(out)["ids"] == want, (want, out, err))
    status, out, err = h.generate("v.mp4", "--tokenizer", "v.gguf")
    check("a run with it", status == 0 and h.bytes_of("v.mp4") == h.bytes_of("base.mp4"), err)
    for key in ("tokens", "merges"):
        gguf_vocabulary(os.path.join(h.work, "x.gguf"), folder, drop=(f"tokenizer.ggml.{key}",))
        h.refuses(f"no {key}", 5, ["x.gguf", "--tokenizer"], "--tokenizer", "x.gguf")
    # an encoder's file without a vocabulary, and no tokenizer anywhere else
    bare = os.path.join(h.work, "bare")
    shutil.copytree(h.model, bare)
    for sub in ("tokenizer", "processor", "text_encoder"):
        shutil.rmtree(os.path.join(bare, "FL2VA", sub))
    source = os.path.join(os.path.dirname(os.path.dirname(h.model)), "formats", "samples", "te-gguf.gguf")
    shutil.copy(source, os.path.join(h.work, "te.gguf"))
    got, _, err = h("generate", "-p", "x", *SMALL, "-m", bare, "--text-encoder", "te.gguf", "-o", "refused.mp4")
    check("an encoder's GGUF without a vocabulary", got == 5 and "te.gguf" in err and "--tokenizer" in err, err)


def fnv1a64(raw):
    x = 0xCBF29CE484222325
    for b in raw:
        x = (x ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{x:016x}"


def compare(path, expected):
    """What of a dump is not as expected.json says: names, shapes, bits where the decoding is exact, else sums and ends."""
    got = read_safetensors(path)
    with open(expected) as f:
        want = json.load(f)["tensors"]
    for name in sorted(set(got) ^ set(want)):
        yield f"{name} is {'surplus' if name in got else 'missing'}"
    for name, e in want.items():
        if name not in got:
            continue
        dtype, shape, raw = got[name]
        v = struct.unpack(f"<{len(raw) // 4}f", raw)
        if dtype != "F32" or shape != e["shape"]:
            yield f"{name} is {dtype} {shape}"
        elif "fnv1a64" in e and fnv1a64(raw) != e["fnv1a64"]:
            yield f"{name}: bits"
        else:
            tol, top = e.get("rtol_of_max", 1e-7), max(map(abs, v), default=0) or 1e-30
            if abs(math.fsum(map(abs, v)) - e["sumabs"]) > tol * top * len(v):
                yield f"{name}: sum"
            for a, b in zip(v[:4] + v[-4:], e["first"] + e["last"]) if len(v) >= 4 else zip(v, e["first"]):
                if abs(a - b) > tol * top:
                    yield f"{name}: {a} for {b}"


SAMPLE_OPTIONS = {"te-original": ["--layers", "3"], "te-llama": ["--layers", "1", "--mmproj", "te-llama-mmproj.gguf"],
                  "vvae-original": ["--head-dim", "12"], "vvae-comfy": ["--head-dim", "12"]}


def samples(h, source):
    """dump --all of every sample equals the expected values; of an adapter, what it adds."""
    folder, n = os.path.join(source, "tests", "data", "formats", "samples"), 0
    for f in sorted(f for f in os.listdir(folder) if f.endswith(".expected.json")):
        form = f[:-len(".expected.json")]
        path = next(p for p in (os.path.join(folder, form + s) for s in (".safetensors", ".gguf", "/transformer", "")) if os.path.exists(p))
        args = [os.path.join(folder, a) if a.endswith(".gguf") else a for a in SAMPLE_OPTIONS.get(form, [])]
        if form.startswith("lora"):
            args, path = ["--lora", path, "--delta", "--strict"], os.path.join(folder, "dit-comfy.safetensors")
        status, _, err = h("dump", path, "--all", "-o", "dump.safetensors", *args)
        wrong = list(compare(os.path.join(h.work, "dump.safetensors"), os.path.join(folder, f))) if status == 0 else [err]
        check(f"dump of {form}", not wrong, wrong[:3])
        n += 1
    check("samples", n >= 30, n)


def merged(h, lora, dit):
    """An adapter merged while converting gives what it gives at run time, and what it adds is what it changes."""
    args = ["--lora", f"{lora}:0.8"]
    check("runs with an adapter", h.generate("with.mp4", *args)[0] == 0)
    check("merges", h("convert", dit, *args, "--to", "f32", "-o", "merged.safetensors")[0] == 0)
    status, _, err = h.generate("merged.mp4", "--dit", "merged.safetensors")
    check("the same video", status == 0 and h.bytes_of("merged.mp4") == h.bytes_of("with.mp4"), err)
    for name, more in (("plain", []), ("sum", args), ("delta", args + ["--delta"])):
        status, _, err = h("dump", dit, "--all", "-o", f"{name}.safetensors", *more)
        check(f"dump {name}", status == 0, err)
    t = {n: read_safetensors(os.path.join(h.work, f"{n}.safetensors")) for n in ("plain", "sum", "delta")}
    check("touched matrices alone", sorted(t["delta"]) == [f"blocks.{i}.attn.out_proj.weight" for i in range(3)], list(t["delta"]))
    for name in t["plain"]:
        a, b = (struct.unpack(f"<{len(t[k][name][2]) // 4}f", t[k][name][2]) for k in ("plain", "sum"))
        d = struct.unpack(f"<{len(a)}f", t["delta"][name][2]) if name in t["delta"] else [0.0] * len(a)
        if not all(abs(x + z - y) <= 1e-6 * (1 + abs(y)) for x, y, z in zip(a, b, d)):
            check(f"{name} is base and addition", False)
    status, _, err = h("dump", dit, "--all", "--delta", "-o", "none.safetensors")
    check("an addition of nothing", status == 2 and "adapter" in err, err)


def poisoned(h):
    """NaN and 1e38 in the middle of a matrix of each part: status 10, stage and place named."""
    cases = [("transformer", "--dit", "blocks.1.mlp.fc2.weight", ["step 0", "blocks.1.mlp.fc2.weight"]),
             ("transformer", "--dit", "final_layer.video_out.weight", ["step 0", "final_layer.video_out.weight"]),
             ("transformer", "--dit", "blocks.2.adaln_proj.linear.weight",
              ["before step 0", "blocks.2.adaln_proj.linear.weight"]),
             ("text_encoder", "--text-encoder", "model.language_model.layers.3.mlp.down_proj.weight",
              ["text encoder", "layers.3.mlp.down_proj.weight"]),
             ("video_vae", "--vae", "decoder.transformer_blocks.1.ff.w2.weight",
              ["video decoder", "transformer_blocks.1.ff.w2.weight"]),
             ("audio_vae", "--audio-vae", "dec_in_proj.weight", ["sound decoder", "dec_in_proj.weight"]),
             ("audio_vae", "--audio-vae", "decoder.conv_pre.weight_v", ["decoder.conv_pre.weight_v"])]
    for part, option, tensor, words in cases:
        for value in (math.nan, 1e38):
            folder = os.path.join(h.work, "poison")
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(os.path.join(h.model, "FL2VA", part), folder)
            for base, _, files in os.walk(folder):
                for f in [f for f in files if f.endswith(".safetensors")]:
                    t = read_safetensors(os.path.join(base, f))
                    if tensor not in t:
                        continue
                    dtype, shape, raw = t[tensor]
                    four = struct.pack("<f", value)
                    width = 2 if dtype == "BF16" else 4
                    at = len(raw) // 2 // width * width
                    t[tensor] = (dtype, shape, raw[:at] + four[4 - width:] + raw[at + width:])
                    write_safetensors(os.path.join(base, f), t)
            line = h.refuses(f"{value} in {tensor}", 10, words, option, folder, "--no-save-latents")
            print("    ", line)


def main(h3av, source):
    model = os.path.join(source, "tests", "data", "tiny-h3", "original")
    with tempfile.TemporaryDirectory(prefix="h3av-formats.") as work:
        h = Program(h3av, model, work)
        dit = os.path.join(model, "FL2VA", "transformer")
        lora = adapters(h, dit)
        quantized(h, lora)
        merged(h, lora, dit)
        samples(h, source)
        orders(h, dit)
        packed(h, dit)
        strangers(h, dit)
        vocabularies(h)
        poisoned(h)
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(os.path.realpath(sys.argv[1]), os.path.realpath(sys.argv[2])))
