"""The engine against diffusers' own modular pipeline: the same weights, prompt and seed, pixel by pixel.

    python compare.py --engine ../../build/release/h3av --original ../../models/h3-nano --diffusers DIR [--first PICTURE | --ref PICTURE]
"""

import argparse
import json
import os
import subprocess
import tempfile
import wave

import numpy as np
import torch
from PIL import Image

import nets


def load_pipeline(root, dtype=torch.float32):
    from diffusers import (
        AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, MiniMaxH3Scheduler, MiniMaxH3Transformer3DModel,
    )
    from diffusers.modular_pipelines import MiniMaxH3Blocks, MiniMaxH3ModularPipeline
    from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration, Qwen3VLProcessor
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    class Nano(MiniMaxH3ModularPipeline):
        """The released pipeline with the two constants that this size moves."""

        min_duration = property(lambda self: 0.5)
        text_encoder_layer = property(lambda self: nets.TEXT_LAYER)

    p = lambda name: os.path.join(root, name)
    tokenizer = AutoTokenizer.from_pretrained(p("tokenizer"))
    settings = []
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        with open(os.path.join(p("processor"), name)) as f:
            settings.append({k: v for k, v in json.load(f).items() if not k.endswith(("_class", "_type"))})
    processor = Qwen3VLProcessor(image_processor=Qwen2VLImageProcessor(**settings[0]), tokenizer=tokenizer,
                                 video_processor=Qwen3VLVideoProcessor(**settings[1]))
    pipe = MiniMaxH3Blocks().init_pipeline()
    pipe.__class__ = Nano
    with open(os.path.join(root, "modular_model_index.json")) as f:
        index = json.load(f)
    config = {k: index[k] for k in ("canvas_short_edge", "canvas_max_pixels", "reference_image_short_edge")}
    dit = MiniMaxH3Transformer3DModel.from_pretrained(p("transformer"), torch_dtype=dtype).eval()
    pipe.update_components(
        text_encoder=Qwen3VLForConditionalGeneration.from_pretrained(p("text_encoder"), dtype=dtype).eval(),
        tokenizer=tokenizer, processor=processor,
        vae=AutoencoderKLMiniMaxH3.from_pretrained(p("vae"), torch_dtype=torch.float32).eval(),
        audio_vae=AutoencoderKLMiniMaxH3Audio.from_pretrained(p("audio_vae"), torch_dtype=torch.float32).eval(),
        scheduler=MiniMaxH3Scheduler.from_pretrained(p("scheduler")),
        audio_scheduler=MiniMaxH3Scheduler.from_pretrained(p("audio_scheduler")),
        transformer=dit, transformer_ref=dit, **config,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="h3av")
    parser.add_argument("--original", required=True)
    parser.add_argument("--diffusers", required=True)
    parser.add_argument("--prompt", default="a large red circle moves left on a black background with a low tone")
    parser.add_argument("--size", type=int, nargs=2, default=(256, 256), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--frames", type=int, default=22)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--first", help="a picture that the clip begins with")
    parser.add_argument("--ref", help="a picture of what moves")
    args = parser.parse_args()
    height, width = args.size
    given, theirs_too = [], {}
    if args.first:
        given, theirs_too = ["--first", args.first], dict(image=Image.open(args.first).convert("RGB"))
    if args.ref:
        from diffusers.modular_pipelines.minimax_h3 import MiniMaxH3ImageReference

        given = ["--ref", args.ref]
        theirs_too = dict(references=[MiniMaxH3ImageReference(image=Image.open(args.ref).convert("RGB"))])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([args.engine, "generate", "-m", args.original, "-p", args.prompt, "-s", f"{width}x{height}", "-f",
                        str(args.frames), "--steps", str(args.steps), "--seed", str(args.seed), "-q", "--frames-dir",
                        os.path.join(folder, "f"), "--wav", os.path.join(folder, "a.wav"), "--no-save-latents", *given],
                       check=True)
        names = sorted(n for n in os.listdir(os.path.join(folder, "f")) if n.endswith(".png"))
        ours = np.stack([np.asarray(Image.open(os.path.join(folder, "f", n)).convert("RGB")) for n in names])
        with wave.open(os.path.join(folder, "a.wav")) as f:
            sound = np.frombuffer(f.readframes(f.getnframes()), "<i2").reshape(-1, 2).T
    pipe = load_pipeline(args.diffusers)
    state = pipe(prompt=args.prompt, height=height, width=width, num_frames=args.frames, num_inference_steps=args.steps,
                 generator=torch.Generator("cpu").manual_seed(args.seed), output_type="np", **theirs_too)
    theirs = np.rint(np.clip(state.get("videos")[0], 0, 1) * 255).astype(np.int64)
    wave32 = state.get("audio")[0].numpy()
    pcm = np.trunc(np.clip(wave32, -1, 1) * 32767).astype(np.int64)
    pixel, sample = np.abs(ours.astype(np.int64) - theirs), np.abs(sound.astype(np.int64) - pcm)
    print(json.dumps(dict(frames=ours.shape, pixels_that_differ=float((pixel > 0).mean()), most=int(pixel.max()),
                          mean=float(pixel.mean()), samples=pcm.shape, samples_that_differ=float((sample > 0).mean()),
                          most_sample=int(sample.max()))))


if __name__ == "__main__":
    main()
