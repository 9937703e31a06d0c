"""Quality of the weights of a training, without an export: batched sampling on the training device.

    python sample.py --weights weights --clips 96 --frames 56 --steps 20 --tasks t2va,fl2va,ref2va

Prompts and scenes are unseen ones (another seed); every prompt names colour, shape, motion, background and sound.
"""

import argparse
import json
import os
import time

import numpy as np
import torch
from safetensors.torch import load_file

import data
import measure
import nets
import train_dit
import world


def requests(task, clips, height, width, frames, seed, device="cpu"):
    """Scenes, prompts and condition pictures (uint8 `(n, 3, h, w)` or None); the training draws from other seeds."""
    rng, writer = np.random.default_rng(seed), data.writer_for(seed)
    s = world.sample_scenes(rng, clips, height, width, frames, p_two=0.0)
    write = writer.reference_prompt if task == "ref2va" else writer.explicit
    prompts = [write(s, i) for i in range(clips)]
    pictures = None
    if task == "fl2va":
        pictures = torch.cat([data.quantize(world.render(s.take(np.arange(i, min(clips, i + 16))), frames, device,
                                                         only_frames=[0]))[:, :, 0] for i in range(0, clips, 16)])
    if task == "ref2va":
        pictures = data.reference_images(s, rng, device)
    return s, prompts, pictures


def load(folder, device, dtype):
    codec = train_dit.load_codec(folder, device)
    dit, text = nets.build_dit(), nets.build_text_encoder()
    dit.load_state_dict({k: v.float() for k, v in load_file(os.path.join(folder, "dit.safetensors")).items()})
    state = {k: v.float() for k, v in load_file(os.path.join(folder, "text_encoder.safetensors")).items()}
    text.load_state_dict({**state, "lm_head.weight": state["model.language_model.embed_tokens.weight"]})
    nets.cast_like_checkpoint(dit.to(device).eval(), dtype)
    text.to(device=device, dtype=dtype).eval()
    vae = nets.build_video_vae()
    vae.load_state_dict({k: v.float() for k, v in load_file(os.path.join(folder, "decoder.safetensors")).items()},
                        strict=False)
    return codec, dit, text, vae.to(device).eval()


@torch.no_grad()
def generate(codec, dit, text, vae, task, height, width, frames, prompts, pictures, steps, seed, most=64):
    """Videos uint8 `(n, f, h, w, 3)` and sounds float32 `(n, 2, samples)`, both numpy, in the order of the prompts."""
    device = codec.device
    pool = argparse.Namespace(codec=codec, height=height, width=width, t=world.video_latents(frames),
                              a=world.audio_latents(frames), h=height // 16, w=width // 16, key=(height, width, frames))
    conditioning = train_dit.Conditioning(dit, text, device)
    generator = torch.Generator(device).manual_seed(seed)
    groups = {}
    for i, ids in enumerate(data.encode_text(prompts)):
        groups.setdefault(len(ids), []).append((i, ids))
    out = [None] * len(prompts)
    batches = [g[k : k + most] for g in groups.values() for k in range(0, len(g), most)]
    for batch in batches:
        ids = torch.tensor([ids for _, ids in batch], device=device)
        images = None
        if pictures is not None:
            images = pictures[[i for i, _ in batch]].to(device)[:, None].float() / 255
        anchors = ("first",) if task == "fl2va" else ()
        z, a = train_dit.sample(dit, text, pool, task, ids, steps, conditioning, generator, anchors, images)
        for k in range(0, len(batch), 8):
            raw = z[k : k + 8].float() * codec.v_std + codec.v_mean
            video = data.quantize(world.denormalize(nets.decode_clip(vae, raw)).clamp(0, 1))
            video = video.permute(0, 2, 3, 4, 1).cpu().numpy()
            sound = nets.decode_audio(codec.audio, a[k : k + 8].float() * codec.a_std + codec.a_mean).cpu().numpy()
            for j, (i, _) in enumerate(batch[k : k + 8]):
                out[i] = (video[j], sound[j])
    return out


def picture(clips, path, columns=6):
    """A contact sheet: one clip a row, six frames each."""
    from PIL import Image

    rows = []
    for video, _ in clips:
        picks = np.linspace(0, len(video) - 1, columns).round().astype(int)
        rows.append(np.concatenate([video[p] for p in picks], axis=1))
    half = (len(rows) + 1) // 2
    rows += [np.zeros_like(rows[0])] * (2 * half - len(rows))
    sheet = np.concatenate([np.concatenate(rows[:half], 0), np.concatenate(rows[half:], 0)], 1)
    Image.fromarray(sheet).resize((sheet.shape[1] // 2, sheet.shape[0] // 2)).save(path, quality=88)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", default="weights")
    parser.add_argument("--tasks", default="t2va")
    parser.add_argument("--clips", type=int, default=96)
    parser.add_argument("--size", type=int, nargs=2, default=(256, 256), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--frames", type=int, default=56)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=4321)
    parser.add_argument("--sheet", help="folder for contact sheets")
    parser.add_argument("--out", help="JSON file for the figures")
    parser.add_argument("--workers", type=int, default=None)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    parts = load(args.weights, device, torch.bfloat16 if device == "cuda" else torch.float32)
    results = {}
    for task in args.tasks.split(","):
        start = time.time()
        s, prompts, pictures = requests(task, args.clips, *args.size, args.frames, args.seed, device)
        clips = generate(*parts, task, *args.size, args.frames, prompts, pictures, args.steps, args.seed)
        made = time.time() - start
        reads = measure.read_all(clips, args.workers)
        rows = [measure.compare(s, i, None, None, r, prompts[i]) for i, r in enumerate(reads)]
        title = f"{task} {args.size[1]}x{args.size[0]}, {args.frames} frames, {args.steps} steps, n={args.clips}"
        results[title] = measure.summary(rows)
        if task == "fl2va":
            truth = pictures.permute(0, 2, 3, 1).cpu().numpy().astype(np.float32)
            mse = [(((v[0].astype(np.float32) - t) / 255) ** 2).mean() for (v, _), t in zip(clips, truth)]
            results[title]["first frame PSNR"] = float(np.mean(-10 * np.log10(np.array(mse) + 1e-9)))
        print(f"{title}: {made:.1f} s to generate, {time.time() - start - made:.1f} s to read", flush=True)
        if args.sheet:
            os.makedirs(args.sheet, exist_ok=True)
            picture(clips[:16], os.path.join(args.sheet, f"{task}_{args.frames}.jpg"))
            with open(os.path.join(args.sheet, f"{task}_{args.frames}.txt"), "w") as f:
                f.write("\n".join(prompts[:16]) + "\n")
    for title, row in results.items():
        print(title, json.dumps({k: round(v, 3) for k, v in row.items()}), flush=True)
    if args.out:
        with open(args.out, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
