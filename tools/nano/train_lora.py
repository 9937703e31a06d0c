"""A small adapter that teaches the trained model one colour more: lime, a word it has never read.

    python train_lora.py --seconds 60 --weights weights --out lime.safetensors
    python train_lora.py --check lime.safetensors --weights weights        # clips of lime shapes, with and without

Low-rank factors on every matrix of the DiT's blocks, in the names of diffusers; the model itself stays as it is.  Half of
the clips show the new colour, the other half are what the model knows already, so that it keeps that.
"""

import argparse
import json
import os
import time

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import data
import nets
import optim
import prompts
import sample
import train_dit
import world

NAME, RGB = "lime", (0.62, 0.98, 0.10)


def teach_colour():
    """The world and its wordings with the new colour at the end of the palette; returns its number."""
    if NAME not in world.COLOURS:
        world.COLOURS[NAME] = RGB
        prompts.COLOUR_WORDS[NAME] = (NAME,)
        world.COLOUR_NAMES = tuple(world.COLOURS)
        world.COLOUR_RGB = np.array(list(world.COLOURS.values()), dtype=np.float32)
    return len(world.COLOURS) - 1


def recolour(s, rows, colour, rng):
    s.colour[rows, 0] = colour
    s.rgb[rows, 0] = np.clip(np.array(RGB) + (rng.random((len(rows), 3)) - 0.5) * 0.04, 0, 1)


class Factors:
    """`A` (r, in), `B` (out, r) of every wide matrix of the blocks; B starts at zero."""

    def __init__(self, dit, rank, device):
        self.rank, self.parts, self.by_id = rank, {}, {}
        for name, p in dit.named_parameters():
            if "transformer_blocks" in name and p.dim() == 2 and "adaln" not in name:
                a = torch.randn(rank, p.shape[1], device=device) * p.shape[1] ** -0.5
                b = torch.zeros(p.shape[0], rank, device=device)
                self.parts[name] = self.by_id[id(p)] = (a.requires_grad_(), b.requires_grad_())

    def parameters(self):
        return [p for pair in self.parts.values() for p in pair]

    def tensors(self, block):
        """What `nets._tensors` gives, with the factors added."""
        out = []
        for t in self.plain(block):
            pair = self.by_id.get(id(t))
            out.append(t if pair is None else t + (pair[1] @ pair[0]).to(t.dtype))
        return tuple(out)

    def __enter__(self):
        self.plain, nets._tensors = nets._tensors, self.tensors
        return self

    def __exit__(self, *_):
        nets._tensors = self.plain

    def save(self, path):
        state = {}
        for name, (a, b) in self.parts.items():
            module = "transformer." + name.removesuffix(".weight")
            state[module + ".lora_A.weight"] = a.detach().bfloat16().cpu().contiguous()
            state[module + ".lora_B.weight"] = b.detach().bfloat16().cpu().contiguous()
        save_file(state, path, metadata={"format": "pt", "lora_alpha": str(self.rank), "trigger": NAME})

    def load(self, path):
        state = load_file(path)
        for name, (a, b) in self.parts.items():
            module = "transformer." + name.removesuffix(".weight")
            a.data.copy_(state[module + ".lora_A.weight"]), b.data.copy_(state[module + ".lora_B.weight"])


def clips(codec, rng, writer, colour, count, frames, device):
    s = world.sample_scenes(rng, count, 256, 256, frames, p_two=0.0)
    recolour(s, np.nonzero(rng.random(count) < 0.5)[0], colour, rng)
    texts = data.encode_text([writer.finish(writer.explicit(s, i)) for i in range(count)])
    z = torch.cat([codec.encode_video(world.render(s.take(np.arange(i, min(count, i + 32))), frames, device))
                   for i in range(0, count, 32)])
    a = codec.encode_audio(world.synth(s, frames, device))
    groups = {}
    for i, ids in enumerate(texts):
        groups.setdefault(len(ids), []).append(i)
    return z, a, texts, groups


def train(args, device):
    colour = teach_colour()
    codec, dit, text, _ = sample.load(args.weights, device, torch.bfloat16 if device == "cuda" else torch.float32)
    for module in (dit, text):
        module.requires_grad_(False)
    factors = Factors(dit, args.rank, device)
    adam = torch.optim.AdamW(factors.parameters(), lr=args.lr, betas=(0.9, 0.99), weight_decay=0.0)
    conditioning = train_dit.Conditioning(dit, text, device)
    rng, writer, levels = np.random.default_rng(args.seed), data.writer_for(args.seed), train_dit.Levels(device)
    pools = []
    for frames, count in ((22, args.clips), (56, args.clips // 2)):
        pool = argparse.Namespace(codec=codec, height=256, width=256, t=world.video_latents(frames),
                                  a=world.audio_latents(frames), h=16, w=16, key=(256, 256, frames))
        pools.append((pool, *clips(codec, rng, writer, colour, count, frames, device)))
    clock, steps, total = optim.Clock(args.seconds, warmup=20, hold=0.4), 0, 0.0
    print(f"{sum(p.numel() for p in factors.parameters())} numbers to learn", flush=True)
    with factors:
        while not clock.done():
            pool, z, a, texts, groups = pools[rng.random() < 0.4]
            n = max(2, args.tokens // (pool.t * 64 + 2 * pool.a + 20))
            lengths = [k for k, g in groups.items() if len(g) >= 8] or list(groups)
            weight = np.array([len(groups[k]) for k in lengths], dtype=float)
            pick = rng.choice(groups[lengths[rng.choice(len(lengths), p=weight / weight.sum())]], n)
            index = torch.as_tensor(pick, device=device)
            batch = dict(ids=torch.tensor([texts[i] for i in pick], device=device), z=z[index], a=a[index])
            shown = conditioning.get(pool, "t2va", batch["ids"].shape[1], ())
            loss, lv, _ = train_dit.flow_loss(dit, text, codec, batch, shown, (nets.block_core, nets.refiner_core), 0.2,
                                              levels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(factors.parameters(), 1.0)
            for group in adam.param_groups:
                group["lr"] = args.lr * clock.scale(steps)
            adam.step(), adam.zero_grad(set_to_none=True)
            steps, total = steps + 1, total + (lv.item() if steps % 10 == 0 else 0.0)
            if steps % 100 == 0:
                print(json.dumps(dict(steps=steps, seconds=round(clock.elapsed, 1), video=round(total / 10, 4))), flush=True)
                total = 0.0
                factors.save(args.out)
    factors.save(args.out)
    print(f"{steps} steps, {clock.elapsed:.1f} s, {os.path.getsize(args.out)} bytes", flush=True)


def check(args, device):
    """How often the new colour is seen with and without the adapter, and the old ones with it."""
    import measure

    colour = teach_colour()
    parts = sample.load(args.weights, device, torch.bfloat16 if device == "cuda" else torch.float32)
    factors = Factors(parts[1], args.rank, device)
    factors.load(args.check)
    out = {}
    for title, new, adapted in (("lime with", True, True), ("lime without", True, False), ("old colours with", False, True)):
        rng, writer = np.random.default_rng(97), data.writer_for(97)
        s = world.sample_scenes(rng, args.clips, 256, 256, args.frames, p_two=0.0)
        if new:
            recolour(s, np.arange(s.n), colour, rng)
        texts = [writer.explicit(s, i) for i in range(s.n)]
        make = lambda: sample.generate(*parts, "t2va", 256, 256, args.frames, texts, None, 20, 5)
        if adapted:
            with factors:
                made = make()
        else:
            made = make()
        reads = measure.read_all(made, args.workers)
        row = measure.summary([measure.compare(s, i, None, None, r) for i, r in enumerate(reads)])
        out[title] = {k: round(row[k], 3) for k in ("seen", "colour", "shape", "motion", "background")}
        print(title, json.dumps(out[title]), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", default="weights")
    parser.add_argument("--out", default="lime.safetensors")
    parser.add_argument("--check")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--clips", type=int, default=2000)
    parser.add_argument("--frames", type=int, default=22)
    parser.add_argument("--tokens", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=None)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    start = time.time()
    (check if args.check else train)(args, device)
    print(f"{time.time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
