"""Write h3-nano in the originally published layout and in the diffusers layout.

    python export.py --weights weights --original ../../models/h3-nano --diffusers DIR
    python export.py --check ../../models/h3-nano DIR              # convert the second and compare with the first
    python export.py --back ../../models/h3-nano --weights weights # the training's files again, to go on from

`weights/` holds what the training leaves: DiT and conditioner in bfloat16 (float32 islands as in the release), the two
halves of the video VAE and the audio VAE in float16.  Both layouts keep these dtypes; the release has float32 VAEs,
which would double the size and say no more.  One DiT serves all tasks, so the shards of Ref2VA are symbolic links to
those of FL2VA, and the other parts are there once.
"""

import argparse
import glob
import json
import math
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

import nets

HERE = os.path.dirname(os.path.abspath(__file__))
VERSION = {"_diffusers_version": "0.42.1"}
ORIGINAL_VERSION = {"_diffusers_version": "0.32.2"}
# Sizes that are the model's own; the diffusers index names them at its top.
SIZES = {"canvas_short_edge": 256, "canvas_max_pixels": 256 * 256, "reference_image_short_edge": nets.REFERENCE_EDGE}
TRAINED = {"trained_min_frames": 22, "trained_max_frames": 124}  # h3av's own keys
COMPONENTS = {
    "text_encoder": ("transformers", "Qwen3VLForConditionalGeneration"), "tokenizer": ("transformers", "Qwen2TokenizerFast"),
    "processor": ("transformers", "Qwen3VLProcessor"), "vae": ("diffusers", "AutoencoderKLMiniMaxH3"),
    "audio_vae": ("diffusers", "AutoencoderKLMiniMaxH3Audio"), "transformer": ("diffusers", "MiniMaxH3Transformer3DModel"),
    "transformer_ref": ("diffusers", "MiniMaxH3Transformer3DModel"), "scheduler": ("diffusers", "MiniMaxH3Scheduler"),
    "audio_scheduler": ("diffusers", "MiniMaxH3Scheduler"),
}


def plain(cfg):
    return json.loads(json.dumps(cfg))


def write_json(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def write_tensors(path, state):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    save_file({k: v.contiguous() for k, v in state.items()}, path, metadata={"format": "pt"})
    os.chmod(path, 0o644)


def write_shards(folder, state, count):
    """A state in its own order in files of about equal bytes, with an index."""
    total, used, groups = sum(t.nbytes for t in state.values()), 0, [[]]
    for name, tensor in state.items():
        if used >= len(groups) * total / count and len(groups) < count:
            groups.append([])
        groups[-1].append(name)
        used += tensor.nbytes
    where = {}
    for i, names in enumerate(groups):
        file = f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors"
        write_tensors(os.path.join(folder, file), {n: state[n] for n in names})
        where.update({n: file for n in names})
    write_json(os.path.join(folder, "model.safetensors.index.json"),
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))})


def read(weights):
    """The four models in diffusers' names and shipped dtypes, and the latent statistics."""
    join = lambda name: os.path.join(weights, name)
    out = dict(dit=load_file(join("dit.safetensors")), text=load_file(join("text_encoder.safetensors")))
    out["video_vae"] = {**load_file(join("encoder.safetensors")), **load_file(join("decoder.safetensors"))}
    assert set(out["video_vae"]) == set(nets.build_video_vae().state_dict())
    # The filters are constants of the architecture; the training leaves them out.
    model = nets.build_audio_vae()
    trained = load_file(join("audio_vae.safetensors"))
    out["audio_vae"] = {k: trained.get(k, v) for k, v in model.state_dict().items()}
    for part, file in (("video_vae", "latents.json"), ("audio_vae", "audio_vae.json")):
        with open(join(file)) as f:
            info = json.load(f)
        out[f"{part}_stats"] = {k: info[k] for k in ("latents_mean", "latents_std")}
    return out


# ----------------------------------------------------------------------------------------------------- names and rows


def interleave(parts, heads):
    """q, k, v with rows (head, channel) -> one matrix (or bias) with rows (head, {q,k,v}, channel)."""
    split = [p.reshape(heads, p.shape[0] // heads, *p.shape[1:]) for p in parts]
    return torch.stack(split, dim=1).reshape(-1, *parts[0].shape[1:]).contiguous()


def swap_halves(weight):
    """[value; gate] <-> [gate; value]."""
    return torch.cat(weight.chunk(2)[::-1]).contiguous()


DIT_TOP = {
    "proj_in": "video_patch_proj", "audio_proj_in": "audio_patch_proj", "context_embedder": "condition_proj",
    "time_embedder.linear_1": "time_embedder.proj_in", "time_embedder.linear_2": "time_embedder.proj_out",
    "norm_out.norm": "final_layer.norm", "norm_out.linear": "final_layer.adaln_proj.linear",
    "proj_out": "final_layer.video_out", "audio_proj_out": "final_layer.audio_out",
    "token_refiner.final_norm": "token_refiner.final_norm",
}
DIT_INNER = {"attn.norm_q": "attn.q_norm", "attn.norm_k": "attn.k_norm", "attn.to_out.0": "attn.out_proj",
             "ff.net.2": "mlp.fc2"}


def dit_to_original(state):
    cfg, out = nets.DIT, {}
    for name, tensor in state.items():
        stem, leaf = name.rsplit(".", 1)
        if stem in DIT_TOP:
            out[f"{DIT_TOP[stem]}.{leaf}"] = tensor
            continue
        for theirs, ours in (("token_refiner.refiner_blocks.", "token_refiner.blocks."), ("transformer_blocks.", "blocks.")):
            if stem.startswith(theirs):
                index, rest = stem[len(theirs):].split(".", 1)
                prefix, target = f"{theirs}{index}", f"{ours}{index}"
        if rest == "attn.to_q":
            parts = [state[f"{prefix}.attn.to_{c}.weight"] for c in "qkv"]
            out[f"{target}.attn.qkv_proj.weight"] = interleave(parts, cfg["num_attention_heads"])
        elif rest in ("attn.to_k", "attn.to_v"):
            continue
        elif rest == "ff.net.0.proj":
            out[f"{target}.mlp.fc1.{leaf}"] = swap_halves(tensor)
        else:
            out[f"{target}.{DIT_INNER.get(rest, rest)}.{leaf}"] = tensor
    n = cfg["rope_freq_dim"]
    out["rope.inv_freq"] = 1.0 / (cfg["rope_theta"] ** (torch.arange(0, 2 * n, 2, dtype=torch.float32) / (2 * n)))
    return out


def video_vae_to_original(state):
    heads, out = nets.VIDEO_VAE["decoder_num_attention_heads"], {}
    for name, tensor in state.items():
        parts = name.split(".")
        if parts[:2] == ["encoder", "down_blocks"]:
            rest = ".".join(parts[3:]).replace("resnets.", "block.").replace("conv_shortcut", "nin_shortcut")
            out[f"encoder.down.{parts[2]}.{rest.replace('downsamplers.0', 'downsample')}"] = tensor
        elif parts[:2] == ["decoder", "proj_in"]:
            out[f"decoder.x_embedder.{parts[2]}"] = tensor
        elif parts[:2] == ["decoder", "transformer_blocks"]:
            prefix, rest, leaf = ".".join(parts[:3]), ".".join(parts[3:-1]), parts[-1]
            if rest == "attn.to_q":
                pieces = [state[f"{prefix}.attn.to_{c}.{leaf}"] for c in "qkv"]
                out[f"{prefix}.attn.to_qkv.{leaf}"] = interleave(pieces, heads)
            elif rest in ("attn.to_k", "attn.to_v"):
                continue
            elif rest == "ff.net.0.proj":
                out[f"{prefix}.ff.w1.{leaf}"] = swap_halves(tensor)
            else:
                rest = {"attn.to_out.0": "attn.to_out", "ff.net.2": "ff.w2"}.get(rest, rest)
                out[".".join(filter(None, (prefix, rest, leaf)))] = tensor
        else:
            out[name] = tensor
    dim = heads * nets.VIDEO_VAE["decoder_attention_head_dim"]
    out["decoder.mask_token"] = torch.zeros(1, 1, dim, dtype=torch.float16)
    return out


# ------------------------------------------------------------------------------------------------------------- configs


def text_config():
    t, v = nets.TEXT["text_config"], nets.TEXT["vision_config"]
    rope = t["rope_parameters"]
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
        **{k: nets.TEXT[k] for k in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
                                     "tie_word_embeddings")},
        "text_config": {
            **{k: x for k, x in t.items() if k != "rope_parameters"},
            "attention_dropout": 0.0, "dtype": "bfloat16", "initializer_range": 0.02, "model_type": "qwen3_vl_text",
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": rope["mrope_section"], "rope_type": "default"},
            "rope_theta": rope["rope_theta"], "use_cache": True,
        },
        "vision_config": {**v, "initializer_range": 0.02, "model_type": "qwen3_vl"},
    }


def dit_original_config(cfg):
    return {
        "_class_name": "MiniMaxH3DiTModel", **ORIGINAL_VERSION, "num_layers": cfg["num_layers"],
        "token_refiner_num_layers": cfg["num_refiner_layers"], "hidden_size": cfg["hidden_size"],
        "num_attention_heads": cfg["num_attention_heads"], "attention_head_dim": cfg["attention_head_dim"],
        "ffn_hidden_size": cfg["ffn_dim"], "latents_dim": cfg["in_channels"],
        "audio_latents_dim": cfg["audio_in_channels"], "patch_size": cfg["patch_size"], "text_dim": cfg["text_dim"],
        "timestep_input_dim": cfg["freq_dim"], "time_embed_hidden_size": cfg["time_embed_hidden_dim"],
        "time_embed_dim": cfg["time_embed_dim"], "adaln_out_features": 18 * cfg["hidden_size"],
        "final_adaln_out_features": 2 * cfg["hidden_size"], "rope_inv_freq_len": cfg["rope_freq_dim"],
        **{k: cfg[k] for k in ("norm_eps", "qk_norm_eps", "final_norm_eps")},
    }


def video_vae_original_configs(cfg, stats):
    ch, space, time = cfg["block_out_channels"][0], cfg["spatial_downsample_factors"], cfg["temporal_downsample_factors"]
    wrapper = {
        "_class_name": "MiniMaxH3VideoVAE", **ORIGINAL_VERSION,
        "auto_map": {"AutoModel": "minimax_h3_video_vae.MiniMaxH3VideoVAE"}, "source_class_name": "AutoencoderKLLegacy",
        "source_path": "source", "source_safetensors_path": "model.safetensors", "latent_channels": cfg["latent_channels"],
        **stats, "vae_clip_length": cfg["clip_length"], "vae_token_drop": cfg["token_drop"], "vae_encoder_tiling": 1,
        "vae_decoder_tiling": 1, "vae_parallel_tiling": 1, "vae_tile_size": 256, "vae_tile_overlap_min": 64,
        "vae_encoder_parallel": 0, "vae_decoder_parallel": 0, "vae_chunk_dim": -1,
    }
    source = {
        "_class_name": "AutoencoderKLLegacy", **ORIGINAL_VERSION, "in_channels": cfg["in_channels"],
        "out_ch": cfg["out_channels"], "ch": ch, "ch_mult": [c // ch for c in cfg["block_out_channels"]],
        "embed_dim": cfg["latent_channels"], "z_channels": cfg["latent_channels"],
        "num_res_blocks": cfg["layers_per_block"], "num_res_blocks_decoder": None, "space_down": space,
        "space_up": [1] + [f for f in reversed(space) if f > 1], "time_down": time, "time_up": None,
        "padding_mode": cfg["spatial_padding_mode"], "padding_mode_t": None, "use_3d_conv": True,
        "use_t_isolated_gn": True, "causal_encoder": True, "causal_decoder": False, "zq_ch_encoder": None,
        "zq_ch_decoder": None, "use_vit_decoder": True, "vae_ratio": math.prod(space), "vae_ratio_t": math.prod(time),
        "vit_decoder_kwargs": {
            "dim_head": cfg["decoder_attention_head_dim"], "heads": cfg["decoder_num_attention_heads"],
            "num_layers": cfg["decoder_num_layers"], "ffn_activation_fn": "silu", "ffn_use_gated": True,
            "norm_affine": True, "norm_type": "rms_norm", "qk_norm_affine": False, "qk_norm_type": "rms_norm",
            "rope_dim_ratio": cfg["decoder_rope_dim_ratio"], "rope_theta": cfg["decoder_rope_theta"],
        },
        "shift_factor": 0.0, "scaling_factor": 1.0, "pixel_norm_type": "imagenet",
        # Not a published field: the release always has 32 groups, and this width is too small for that.
        "norm_num_groups": cfg["norm_num_groups"],
    }
    return wrapper, source


def audio_vae_original_configs(cfg, stats):
    config = {
        "_class_name": "MiniMaxH3AudioVAE", **ORIGINAL_VERSION,
        "auto_map": {"AutoModel": "minimax_h3_audio_vae.MiniMaxH3AudioVAE"}, "output_channel": 2,
        "sample_rate": cfg["sampling_rate"], "source_config_path": "config.yaml",
        "source_safetensors_path": "model.safetensors", "source_metadata_path": "metadata.json",
        "latent_channels": cfg["latent_channels"], **stats,
    }
    metadata = {"metadata": {"kwargs": {
        "attn_proj": True, "decoder_dim": cfg["decoder_dim"], "decoder_rates": cfg["decoder_rates"],
        "decoder_type": "bigvgan", "encoder_dim": cfg["encoder_dim"], "encoder_rates": cfg["encoder_rates"],
        "latent_dim": cfg["latent_dim"], "sample_rate": cfg["sampling_rate"],
        "vae_latent_channels": cfg["latent_channels"],
        "num_attention_heads": cfg["num_attention_heads"],  # not a published field either: the release has 8
    }}}
    yaml = (f"model_config:\n  sr: {cfg['sampling_rate']}\n  decoder_dim: {cfg['decoder_dim']}\n  audio_channel: 1\n"
            f"  vae_latent_channels: {cfg['latent_channels']}\n")
    return config, metadata, yaml


def model_index(partition, tasks):
    return {
        "_class_name": "MiniMaxH3Pipeline", **ORIGINAL_VERSION,
        "text_encoder": ["transformers", "MiniMaxH3Qwen3VLHFEncoder"], "tokenizer": ["transformers", "Qwen2TokenizerFast"],
        "video_vae": ["diffusers", "MiniMaxH3VideoVAE"], "audio_vae": ["diffusers", "MiniMaxH3AudioVAE"],
        "scheduler": None, "transformer": ["diffusers", "MiniMaxH3DiTModel"],
        "processor": ["transformers", "Qwen3VLProcessor"],
        "_minimax_h3": {"schema_version": 1, "partition": partition, "tasks": tasks, "task_aliases": {},
                        "sigma_shift_scales": {"video": nets.VIDEO_SHIFT, "audio": nets.AUDIO_SHIFT}, **SIZES, **TRAINED},
    }


def write_tokenizer(folder):
    os.makedirs(folder, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"):
        shutil.copyfile(os.path.join(HERE, "tokenizer", name), os.path.join(folder, name))


def write_processor(folder):
    common = {
        "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3, "merge_size": 2, "patch_size": 16, "resample": 3, "rescale_factor": 1.0 / 255.0,
        "temporal_patch_size": 2, "size": {"shortest_edge": nets.VISION_MIN_PIXELS, "longest_edge": nets.VISION_MAX_PIXELS},
        "processor_class": "Qwen3VLProcessor",
    }
    write_json(os.path.join(folder, "preprocessor_config.json"),
               {**common, "image_processor_type": "Qwen2VLImageProcessorFast"})
    write_json(os.path.join(folder, "video_preprocessor_config.json"),
               {**common, "video_processor_type": "Qwen3VLVideoProcessor", "do_sample_frames": True, "fps": 2,
                "max_frames": 768, "min_frames": 4})


# ------------------------------------------------------------------------------------------------------------- layouts


def write_original(root, w):
    at = lambda *names: os.path.join(root, "FL2VA", *names)
    for partition, tasks in (("FL2VA", ["t2va", "fl2va"]), ("Ref2VA", ["ref2va"])):
        write_json(os.path.join(root, partition, "model_index.json"), model_index(partition.lower(), tasks))
    write_json(at("transformer", "config.json"), dit_original_config(plain(nets.DIT)))
    write_shards(at("transformer"), dit_to_original(w["dit"]), 2)
    reference = os.path.join(root, "Ref2VA", "transformer")
    os.makedirs(reference, exist_ok=True)
    for name in sorted(os.listdir(at("transformer"))):
        link = os.path.join(reference, name)
        if os.path.lexists(link):
            os.remove(link)
        os.symlink(os.path.join("..", "..", "FL2VA", "transformer", name), link)
    wrapper, source = video_vae_original_configs(plain(nets.VIDEO_VAE), w["video_vae_stats"])
    write_json(at("video_vae", "config.json"), wrapper)
    write_json(at("video_vae", "source", "config.json"), source)
    write_tensors(at("video_vae", "source", "model.safetensors"), video_vae_to_original(w["video_vae"]))
    config, metadata, yaml = audio_vae_original_configs(plain(nets.AUDIO_VAE), w["audio_vae_stats"])
    write_json(at("audio_vae", "config.json"), config)
    write_json(at("audio_vae", "metadata.json"), metadata)
    with open(at("audio_vae", "config.yaml"), "w") as f:
        f.write(yaml)
    write_tensors(at("audio_vae", "model.safetensors"), w["audio_vae"])
    write_json(at("text_encoder", "config.json"), text_config())
    write_shards(at("text_encoder"), w["text"], 1)
    write_tokenizer(at("tokenizer"))
    write_processor(at("processor"))


def write_diffusers(root, w):
    def put(name, config, state, file="diffusion_pytorch_model.safetensors"):
        write_json(os.path.join(root, name, "config.json"), config)
        write_tensors(os.path.join(root, name, file), state)

    put("transformer", {"_class_name": "MiniMaxH3Transformer3DModel", **VERSION, **plain(nets.DIT)}, w["dit"])
    put("vae", {"_class_name": "AutoencoderKLMiniMaxH3", **VERSION, **plain(nets.VIDEO_VAE), **w["video_vae_stats"]},
        w["video_vae"])
    put("audio_vae", {"_class_name": "AutoencoderKLMiniMaxH3Audio", **VERSION, **plain(nets.AUDIO_VAE),
                      **w["audio_vae_stats"]}, w["audio_vae"])
    put("text_encoder", text_config(), w["text"], "model.safetensors")
    write_tokenizer(os.path.join(root, "tokenizer"))
    write_processor(os.path.join(root, "processor"))
    write_tokenizer(os.path.join(root, "processor"))
    for name, shift in (("scheduler", nets.VIDEO_SHIFT), ("audio_scheduler", nets.AUDIO_SHIFT)):
        write_json(os.path.join(root, name, "scheduler_config.json"),
                   {"_class_name": "MiniMaxH3Scheduler", **VERSION, "shift": shift})
    index = {"_class_name": "MiniMaxH3ModularPipeline", **VERSION, "_blocks_class_name": "MiniMaxH3Blocks"}
    for name, (library, kind) in COMPONENTS.items():
        index[name] = [library, kind, {"type_hint": [library, kind], "pretrained_model_name_or_path": ".",
                                       "subfolder": "transformer" if name == "transformer_ref" else name,
                                       "variant": None, "revision": None}]
    index.update(SIZES)
    write_json(os.path.join(root, "modular_model_index.json"), index)


def check(original, diffusers):
    """The original layout must hold exactly what the diffusers layout gives when it is converted."""
    def shards(*names):
        out = {}
        for path in sorted(glob.glob(os.path.join(*names, "*.safetensors"))):
            out.update(load_file(path))
        return out

    fl = os.path.join(original, "FL2VA")
    pairs = (
        ("DiT", shards(fl, "transformer"), dit_to_original(shards(diffusers, "transformer"))),
        ("DiT, ref2va", shards(original, "Ref2VA", "transformer"), dit_to_original(shards(diffusers, "transformer"))),
        ("video VAE", shards(fl, "video_vae", "source"), video_vae_to_original(shards(diffusers, "vae"))),
        ("audio VAE", shards(fl, "audio_vae"), shards(diffusers, "audio_vae")),
        ("conditioner", shards(fl, "text_encoder"), shards(diffusers, "text_encoder")),
    )
    for name, a, b in pairs:
        assert set(a) == set(b), (name, set(a) ^ set(b))
        assert all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a), name
        print(f"{name:12s} {len(b):4d} tensors equal, {sum(t.nbytes for t in b.values()) / 1e6:.2f} MB")


def deinterleave(weight, heads):
    """The inverse of `interleave`."""
    parts = weight.reshape(heads, 3, -1, *weight.shape[1:])
    return [parts[:, j].reshape(-1, *weight.shape[1:]).contiguous() for j in range(3)]


def back(original, weights):
    """Files of a training from a released folder: what `read` reads (the code is made again by lincode.py)."""
    os.makedirs(weights, exist_ok=True)
    fl, at = os.path.join(original, "FL2VA"), lambda name: os.path.join(weights, name)
    load = lambda *names: {k: v for path in sorted(glob.glob(os.path.join(fl, *names, "*.safetensors")))
                           for k, v in load_file(path).items()}

    def undo(stored, template, forward, fused, halves, heads):
        """A state with the names of `template` whose `forward` gives `stored`, found by following tensors through it."""
        marks = {k: torch.full(v.shape, float(i)) for i, (k, v) in enumerate(template.items())}
        names, out = list(marks), {}
        for name, tensor in forward(marks).items():
            if name not in stored or not tensor.dtype.is_floating_point or name in ("rope.inv_freq", "decoder.mask_token"):
                continue
            found = [names[int(i)] for i in torch.unique_consecutive(tensor.flatten())[:3]]
            if fused in name:
                for key, part in zip(sorted(set(found)), (1, 0, 2)):  # to_k, to_q, to_v
                    out[key] = deinterleave(stored[name], heads)[part]
            else:
                out[found[0]] = swap_halves(stored[name]) if halves in name else stored[name]
        assert set(out) == set(template), set(template) ^ set(out)
        return out

    dit = undo(load("transformer"), nets.build_dit().state_dict(), dit_to_original, ".attn.qkv_proj.", ".mlp.fc1.",
               nets.DIT["num_attention_heads"])
    vae = undo(load("video_vae", "source"), nets.build_video_vae().state_dict(), video_vae_to_original, ".attn.to_qkv.",
               ".ff.w1.", nets.VIDEO_VAE["decoder_num_attention_heads"])
    write_tensors(at("dit.safetensors"), dit)
    write_tensors(at("encoder.safetensors"), {k: v for k, v in vae.items() if k.startswith(("encoder.", "quant_conv."))})
    write_tensors(at("decoder.safetensors"),
                  {k: v for k, v in vae.items() if k.startswith(("decoder.", "post_quant_conv."))})
    write_tensors(at("text_encoder.safetensors"), load("text_encoder"))
    write_tensors(at("audio_vae.safetensors"), load("audio_vae"))
    for part, file in (("video_vae", "latents.json"), ("audio_vae", "audio_vae.json")):
        with open(os.path.join(fl, part, "config.json")) as f:
            info = json.load(f)
        write_json(at(file), {k: info[k] for k in ("latents_mean", "latents_std")})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", default=os.path.join(HERE, "weights"))
    parser.add_argument("--original")
    parser.add_argument("--diffusers")
    parser.add_argument("--check", nargs=2, metavar=("ORIGINAL", "DIFFUSERS"))
    parser.add_argument("--back", metavar="ORIGINAL")
    args = parser.parse_args()
    if args.back:
        return back(args.back, args.weights)
    if args.check:
        return check(*args.check)
    w = read(args.weights)
    if args.original:
        write_original(args.original, w)
    if args.diffusers:
        write_diffusers(args.diffusers, w)
    if args.original and args.diffusers:
        check(args.original, args.diffusers)


if __name__ == "__main__":
    main()
