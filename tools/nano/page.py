"""The picture of docs/nano.md: prompts, frames of their clips, and the spectrum of their sound, beside each other.

    python page.py --engine ../../build/release/h3av --out ../../docs/nano.jpg

Seeds are 1, 2, 3 ...: nothing is picked.
"""

import argparse
import os
import subprocess
import tempfile

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import evaluate
import measure
import world

PROMPTS = (
    "a large red circle moves left on a black background with a low tone",
    "a small yellow star bounces on a navy background with a high tone and a click at each bounce",
    "a green square slides to the right on a white background with middle beeps",
    "a big purple ring floats up on a beige background with a rising tone",
    "a cyan cross circles the middle on a gray background with a falling tone",
)
EDGE, FRAMES, SPECTRUM, TEXT, GAP = 112, 5, 232, 22, 6


def spectrum(sound, width, height):
    """Left ear above, right ear below: 0 to 2 kHz upwards, time to the right."""
    ears = []
    for ear in sound:
        slots = ear[: len(ear) // world.HOP * world.HOP].reshape(-1, world.HOP) * np.hanning(world.HOP)
        power = np.abs(np.fft.rfft(slots, 4 * world.HOP)[:, : 4 * 50]).T[::-1]
        ears.append(np.asarray(Image.fromarray(power.astype(np.float32)).resize((width, height // 2), Image.BILINEAR)))
    x = np.clip(1 + np.log10(np.concatenate(ears) / 100 + 1e-6) / 2.2, 0, 1)
    out = (np.stack((x**0.6, x**1.4, 0.25 + 0.35 * x), 2) * 255).astype(np.uint8)
    out[height // 2] = 255
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="h3av")
    parser.add_argument("--model")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", default="nano.jpg")
    args = parser.parse_args()
    model = ["-m", args.model] if args.model else []

    def make(folder, prompt, steps, seed):
        subprocess.run([args.engine, "generate", *model, "-p", prompt, "-s", "256x256", "-f", "56", "--steps", str(steps),
                        "--seed", str(seed), "-q", "--no-save-latents", "--frames-dir", os.path.join(folder, str(seed)),
                        "--frames-format", "ppm", "--wav", os.path.join(folder, f"{seed}.wav")], check=True)
        return evaluate.read_frames(os.path.join(folder, str(seed)), os.path.join(folder, f"{seed}.wav"))

    still = lambda frame, edge: Image.fromarray((frame * 255).round().astype(np.uint8)).resize((edge, edge), Image.LANCZOS)
    row = EDGE + TEXT + GAP
    page = Image.new("RGB", (FRAMES * (EDGE + 2) + SPECTRUM + GAP, row * len(PROMPTS)), "white")
    pen = ImageDraw.Draw(page)
    try:
        font = ImageFont.truetype("DejaVuSans.ttf", 14)
    except OSError:
        font = ImageFont.load_default(14)
    with tempfile.TemporaryDirectory() as folder:
        for i, prompt in enumerate(PROMPTS):
            video, sound = make(folder, prompt, args.steps, i + 1)
            v, a = measure.read_video(video), measure.read_audio(sound)
            print(prompt, [v[k] for k in ("colour", "shape", "motion", "background")], a["sound"], a["pitch"], flush=True)
            top = i * row
            pen.text((2, top), prompt, fill="black", font=font)
            for k, f in enumerate(np.linspace(0, len(video) - 1, FRAMES).round().astype(int)):
                page.paste(still(video[f], EDGE), (k * (EDGE + 2), top + TEXT))
            page.paste(Image.fromarray(spectrum(sound, SPECTRUM, EDGE)), (FRAMES * (EDGE + 2) + GAP, top + TEXT))
    page.save(args.out, quality=86, optimize=True)
    print(os.path.getsize(args.out), "bytes")


if __name__ == "__main__":
    main()
