"""The training-time twins against diffusers' and transformers' own forwards, on random weights.

    python test_nano.py
"""

import numpy as np
import torch
from PIL import Image

import nets
import world

torch.manual_seed(0)


def close(name, a, b, tol=2e-5):
    assert a.shape == b.shape, (name, a.shape, b.shape)
    err = (a - b).abs().max().item()
    ref = b.abs().max().item()
    print(f"{name:42s} max |a-b| {err:.2e} of {ref:.2e}")
    assert err <= tol * max(1.0, ref), name


def randomize(module):
    for p in module.parameters():
        if p.dim() < 2:
            p.data.normal_(0, 0.1).add_(p.data.mean())
        else:
            p.data.add_(torch.randn_like(p) * 0.3 / p[0].numel() ** 0.5)
    return module.eval()


def test_video_vae():
    vae = randomize(nets.build_video_vae())
    for p in (b for n, b in vae.named_parameters() if "scale" in n):
        p.data.normal_(0, 0.5)
    for frames, h, w in ((22, 64, 96), (56, 64, 64)):
        x = torch.randn(2, 3, frames, h, w)
        with torch.no_grad():
            moments = vae._encode(x)
            close(f"encode {frames}", nets.encode_clip(vae, x), moments)
            first = vae._encode(x[:, :, :1])
            close("first frame is latent frame 0", first[:, :, 0], moments[:, :, 0])
            z = torch.randn(2, 24, world.video_latents(frames), h // 16, w // 16)
            close(f"decode {frames}", nets.decode_clip(vae, z), vae._decode(z))
            window = vae.decoder(vae.post_quant_conv(z[:, :, :7]))
            close(f"decode {frames}, tokens", nets.decode_tokens(vae, z[:, :, :7]), nets.to_tokens(window))
            nets.ENCODER = nets.encoder_2d
            close(f"encode {frames} by 2D convolutions", nets.encode_clip(vae, x), moments)
            import copy

            closed = copy.deepcopy(vae)
            for r in closed.encoder.down_blocks[0].resnets:
                r.conv2.weight.data.zero_(), r.conv2.bias.data.zero_()
            assert nets.is_closed(closed.encoder) and not nets.is_closed(vae.encoder)
            nets.ENCODER = nets.encoder_closed
            close(f"encode {frames}, first level closed", nets.encode_clip(closed, x), closed._encode(x))
            nets.ENCODER = None


def test_audio_vae():
    vae = nets.build_audio_vae().eval()
    wave = torch.randn(2, 2, 8000) * 0.1
    with torch.no_grad():
        z = nets.encode_audio(vae, wave)
        close("audio encode, right channel", z[:, 1], vae.encode(wave[:, 1:2]).latent_dist.mode())
        close("audio decode, left channel", nets.decode_audio(vae, z)[:, 0:1], vae.decode(z[:, 0]).sample)
        nets.quiet_branches(vae)
        mono = wave[:, :1]
        close("audio encode, closed branches", nets.audio_encode_trunk(vae, mono)[0], vae.encode(mono).latent_dist.mode())
        close("audio decode, closed branches", nets.audio_decode_trunk(vae, z[:, 0]), vae.decode(z[:, 0]).sample)


def conditioner_reference(model, ids, image_list):
    from transformers import Qwen2VLImageProcessor

    processor = Qwen2VLImageProcessor(
        patch_size=16, temporal_patch_size=2, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3,
        size={"shortest_edge": nets.VISION_MIN_PIXELS, "longest_edge": nets.VISION_MAX_PIXELS},
    )
    kwargs = {}
    if image_list:
        out = processor(images=image_list, return_tensors="pt")
        kwargs = {"pixel_values": out["pixel_values"], "image_grid_thw": out["image_grid_thw"]}
    types = (ids == model.config.image_token_id).long()
    with torch.no_grad():
        hidden = model.model(
            input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=types, use_cache=False,
            output_hidden_states=True, **kwargs,
        ).hidden_states
    return hidden


def test_conditioner():
    import data

    model = randomize(nets.build_text_encoder())
    last = model.model.language_model.layers[nets.TEXT_LAYER]
    last.self_attn.o_proj.weight.data.zero_()
    last.mlp.down_proj.weight.data.zero_()
    ids = torch.randint(0, 900, (1, 17))
    with torch.no_grad():
        close("text", nets.text_forward(model, ids), conditioner_reference(model, ids, [])[nets.TEXT_LAYER])
    for sizes in (((64, 96),), ((128, 128), (128, 128))):
        images = [np.random.default_rng(0).integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in sizes]
        h, w = sizes[0]
        head = data.presentation(len(images), h, w)
        full = torch.cat((torch.tensor([head.ids]), ids), dim=1)
        x = torch.stack([torch.from_numpy(i).permute(2, 0, 1).float() / 255 for i in images])[None]
        positions = data.rotary_positions(head, ids.shape[1])
        want = conditioner_reference(model, full, [Image.fromarray(i) for i in images])
        with torch.no_grad():
            got = nets.text_forward(model, full, x, positions)
        close(f"{len(images)} image(s) and text", got, want[nets.TEXT_LAYER], 1e-4)


def test_dit():
    dit = randomize(nets.build_dit())
    for name, anchors, reference in (("t2va", (), None), ("fl2va", ("first", "last"), None), ("ref2va", (), (8, 8))):
        tags = [1] * 5 + [0] * 6 + [1] * 4 if anchors or reference else [1] * 9
        frames, h, w = 22, 8, 6
        t, a = world.video_latents(frames), world.audio_latents(frames)
        layout = nets.Layout(dit, tags, t, h, w, a, anchors, reference)
        n_video = len(layout.video)
        video, audio = torch.randn(2, n_video, 96), torch.randn(2, 2 * a, 32)
        text = torch.randn(2, len(tags), nets.DIT["text_dim"])
        tv, ta = torch.tensor([0.2, 0.7]), torch.tensor([0.5, 0.9])
        with torch.no_grad():
            got_v, got_a = nets.dit_forward(dit, video, audio, text, tv, ta, layout)
            for i in range(2):
                rows = torch.full((layout.length,), float(tv[i]))
                rows[layout.audio] = ta[i]
                rows[layout.video[: layout.n_condition]] = nets.CONDITION_T
                unique, index = torch.unique(rows, sorted=True, return_inverse=True)
                want = dit(
                    hidden_states=video[i : i + 1], audio_hidden_states=audio[i : i + 1],
                    encoder_hidden_states=text[i : i + 1], timestep=unique, timestep_indices=index,
                    token_tags=layout.tags, position_ids=layout.position_ids, video_indices=layout.video,
                    audio_indices=layout.audio, text_indices=layout.text,
                )
                close(f"{name} video, sample {i}", got_v[i], want.sample[0, layout.n_condition :], 1e-4)
                close(f"{name} audio, sample {i}", got_a[i], want.audio_sample[0], 1e-4)


def test_patchify():
    from diffusers.modular_pipelines.minimax_h3.before_denoise import patchify_video_latents

    z = torch.randn(1, 24, 7, 8, 6)
    close("patchify", nets.patchify(z)[0], patchify_video_latents(z, (1, 2, 2)))
    close("unpatchify", nets.unpatchify(nets.patchify(z), 7, 8, 6), z)


if __name__ == "__main__":
    test_patchify()
    test_video_vae()
    test_audio_vae()
    test_dit()
    test_conditioner()
    print("ok")
