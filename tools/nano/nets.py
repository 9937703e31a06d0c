"""h3-nano's configurations, and training-time forwards that batch what the pipeline runs one request at a time.

The modules are diffusers' and transformers' own.  Their `forward`s serve one packed request, so training needs
batched twins in which every sample has its own timesteps; `test_nano.py` holds the twins to the originals.
"""

import json
import os

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, MiniMaxH3Transformer3DModel
from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3PrepareLayoutStep,
    MiniMaxH3Ref2VAPrepareLayoutStep,
)

HERE = os.path.dirname(os.path.abspath(__file__))

VIDEO_VAE = dict(
    in_channels=3,
    out_channels=3,
    latent_channels=24,
    block_out_channels=(16, 16, 32, 32, 32),
    layers_per_block=1,
    spatial_downsample_factors=(2, 2, 2, 2, 1),
    temporal_downsample_factors=(1, 2, 2, 1, 1),
    norm_num_groups=4,
    norm_eps=1e-6,
    spatial_padding_mode="reflect",
    decoder_num_layers=3,
    decoder_num_attention_heads=2,
    decoder_attention_head_dim=80,
    decoder_num_register_tokens=4,
    decoder_ffn_mult=2,
    decoder_rope_theta=100.0,
    decoder_rope_dim_ratio=0.75,
    decoder_norm_eps=1e-5,
    clip_length=17,
    token_drop=3,
)
AUDIO_VAE = dict(
    encoder_dim=4,
    encoder_rates=(2, 4, 4, 5, 5),
    latent_dim=256,
    latent_channels=32,
    num_attention_heads=8,
    decoder_dim=128,
    decoder_rates=(5, 5, 2, 2, 2, 2, 2),
    decoder_kernel_sizes=(9, 9, 4, 4, 4, 4, 4),
    resblock_kernel_sizes=(3, 7, 11),
    resblock_dilation_sizes=((1, 3, 5), (1, 3, 5), (1, 3, 5)),
    sampling_rate=32000,
)
DIT = dict(
    num_attention_heads=3,
    attention_head_dim=64,
    hidden_size=192,
    num_layers=5,
    num_refiner_layers=1,
    ffn_dim=320,
    in_channels=24,
    audio_in_channels=32,
    patch_size=(1, 2, 2),
    text_dim=96,
    freq_dim=256,
    time_embed_hidden_dim=64,
    time_embed_dim=8,
    rope_freq_dim=8,
    rope_theta=10000.0,
    norm_eps=1e-5,
    qk_norm_eps=1e-5,
    final_norm_eps=1e-5,
)
# The conditioner is read after TEXT_LAYER decoder layers, before any final norm.  One more layer follows in the
# checkpoint, as there must be; it adds nothing (its output projections are zero), so reading one layer late is the same.
TEXT_LAYER = 2
TEXT = dict(
    text_config=dict(
        vocab_size=1024,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=TEXT_LAYER + 1,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        hidden_act="silu",
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope_parameters=dict(
            rope_type="default", rope_theta=5000000.0, mrope_section=[6, 5, 5], mrope_interleaved=True
        ),
        attention_bias=False,
        bos_token_id=998,
        eos_token_id=1000,
    ),
    vision_config=dict(
        depth=2,
        hidden_size=32,
        hidden_act="gelu_pytorch_tanh",
        intermediate_size=64,
        num_heads=2,
        in_channels=3,
        patch_size=16,
        spatial_merge_size=2,
        temporal_patch_size=2,
        out_hidden_size=96,
        num_position_embeddings=256,
        deepstack_visual_indexes=[0],
    ),
    image_token_id=1010,
    video_token_id=1011,
    vision_start_token_id=1007,
    vision_end_token_id=1008,
    tie_word_embeddings=True,
)
VISION_MIN_PIXELS, VISION_MAX_PIXELS = 64 * 64, 512 * 512  # no resize for the canvases of the toy world
REFERENCE_EDGE = 128  # short edge of an image reference (2048 in the released model)
CONDITION_T = 0.999
VIDEO_SHIFT, AUDIO_SHIFT = 12.0, 3.0
VIDEO_TAG, TEXT_TAG, AUDIO_TAG = 0, 1, 2


def build_video_vae(**overrides):
    return AutoencoderKLMiniMaxH3(**{**VIDEO_VAE, **overrides})


def build_audio_vae(**overrides):
    return AutoencoderKLMiniMaxH3Audio(**{**AUDIO_VAE, **overrides})


def build_dit(**overrides):
    return MiniMaxH3Transformer3DModel(**{**DIT, **overrides})


def build_text_encoder():
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**json.loads(json.dumps(TEXT))))
    last = model.model.language_model.layers[TEXT_LAYER]
    torch.nn.init.zeros_(last.self_attn.o_proj.weight)
    torch.nn.init.zeros_(last.mlp.down_proj.weight)
    return model


def load_tokenizer():
    from tokenizers import Tokenizer

    return Tokenizer.from_file(os.path.join(HERE, "tokenizer", "tokenizer.json"))


# ------------------------------------------------------------------------------------------------------- video VAE


def _conv(conv, x, n, pad):
    """A causal 3x3x3 (or 1x1x1) convolution of frames `(n * t, c, h, w)` as one 2D convolution over stacked taps."""
    if conv.kernel_size[0] == 1:
        return F.conv2d(x, conv.weight[:, :, 0], conv.bias)
    t = x.shape[0] // n
    c, h, w = x.shape[1:]
    step = conv.stride[0]
    out = (t - 1) // step + 1
    y = F.pad(x.reshape(n, t, c, h, w), (0, 0, 0, 0, 0, 0, 2, 0))
    y = torch.cat([y[:, i : i + step * (out - 1) + 1 : step] for i in range(3)], dim=2).reshape(n * out, 3 * c, h, w)
    y = F.pad(y, pad, mode="reflect")
    weight = conv.weight.permute(0, 2, 1, 3, 4).reshape(conv.out_channels, 3 * c, 3, 3)
    return F.conv2d(y, weight, conv.bias, stride=conv.stride[1])


def encoder_2d(encoder, video):
    """`encoder(video)` by 2D convolutions; the same numbers, another road through cuDNN."""
    n, c, t, h, w = video.shape
    x = video.transpose(1, 2).reshape(n * t, c, h, w)
    norm = lambda m, x: F.silu(F.group_norm(x, m.num_groups, m.weight, m.bias, m.eps))
    around = (1, 1, 1, 1)
    x = _conv(encoder.conv_in, x, n, around)
    for level in encoder.down_blocks:
        for r in level.resnets:
            y = _conv(r.conv1, norm(r.norm1, x), n, around)
            y = _conv(r.conv2, norm(r.norm2, y), n, around)
            x = (x if r.conv_shortcut is None else _conv(r.conv_shortcut, x, n, None)) + y
        for d in level.downsamplers or ():
            x = _conv(d.conv, x, n, (0, 1, 0, 1))
    x = _conv(encoder.conv_out, norm(encoder.norm_out, x), n, around)
    return x.reshape(n, x.shape[0] // n, *x.shape[1:]).transpose(1, 2)


def encoder_closed(encoder, video):
    """`encoder(video)` while the residual branches of the first (full-resolution) level are closed: they are skipped."""
    x = encoder.conv_in(video)
    for d in encoder.down_blocks[0].downsamplers:
        x = d(x)
    for level in encoder.down_blocks[1:]:
        x = level(x)
    return encoder.conv_out(F.silu(encoder.norm_out(x)))


def is_closed(encoder):
    return all(not r.conv2.weight.any() and not r.conv2.bias.any() for r in encoder.down_blocks[0].resnets)


ENCODER = None  # set to encoder_2d or encoder_closed to take another road


def _moments(vae, video):
    return vae.quant_conv(ENCODER(vae.encoder, video) if ENCODER else vae.encoder(video))


def encode_clip(vae, video):
    """Moments of a clip of 17 n + 5 frames (or of one frame), without the padding frames that are dropped anyway.

    The encoder is causal within a chunk of 17 frames, so the last chunk's five real frames alone give the two latent
    frames that are kept.  Tiling never splits canvases up to 256 pixels.
    """
    frames = video.shape[2]
    if frames == 1:
        return _moments(vae, video)
    whole = (frames - 5) // 17
    n, c, _, h, w = video.shape
    body = video[:, :, : whole * 17].reshape(n, c, whole, 17, h, w).transpose(1, 2).reshape(n * whole, c, 17, h, w)
    body = _moments(vae, body)
    k, lh, lw = body.shape[1], *body.shape[-2:]
    body = body.reshape(n, whole, k, 5, lh, lw).transpose(1, 2).reshape(n, k, whole * 5, lh, lw)
    tail = _moments(vae, video[:, :, whole * 17 :])
    return torch.cat((body, tail), dim=2)


# Pixel frames of a decoded window of 7 latent frames that are kept: 17 of the chunk, then 5 of the overlap.
WINDOW = list(range(3, 20)) + list(range(23, 28))


def compiled(core, *dims):
    """`core`, compiled once for all sizes.  `dims`: (argument number, dimensions that vary)."""
    fast = torch.compile(core)

    def call(*args):
        for index, vary in dims:
            for d in vary:
                torch._dynamo.maybe_mark_dynamic(args[index], d)
        return fast(*args)

    return call


def vit_core(x, cos, sin, n1, wq, wk, wv, bq, bk, bv, wo, bo, s1, n2, w1, b1, w2, b2, s2, heads, eps):
    """A block of the ViT decoder as a function of its tensors, so that one compilation serves all blocks."""
    n, s, _ = x.shape
    h = F.linear(_rms(x, n1, eps), torch.cat((wq, wk, wv)), torch.cat((bq, bk, bv)))
    q, k, v = h.view(n, s, 3, heads, -1).unbind(2)
    one = q.new_ones(())
    q, k = _rope(_rms(q, one, eps), cos, sin), _rope(_rms(k, one, eps), cos, sin)
    y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    x = x + F.linear(y.transpose(1, 2).reshape(n, s, -1), wo, bo) * s1
    value, gate = F.linear(_rms(x, n2, eps), w1, b1).chunk(2, dim=-1)
    return x + F.linear(value * F.silu(gate), w2, b2) * s2


def decode_tokens(vae, latents, core=vit_core, dtype=torch.float32):
    """`(n, 24, t, h, w)` raw latents -> `(n, t h w, 3 * 4 * 16 * 16)`: the decoder before its patches are laid out."""
    d = vae.decoder
    n, c, t, h, w = latents.shape
    x = F.linear(latents.permute(0, 2, 3, 4, 1).reshape(n, t * h * w, c), vae.post_quant_conv.weight.flatten(1),
                 vae.post_quant_conv.bias)
    x = d.proj_in(x)
    x = torch.cat((x, d.register_tokens.expand(n, -1, -1), torch.zeros_like(x[:, :1])), dim=1).to(dtype)
    grids = [2.0 * (torch.arange(0.5, size, device=x.device) / size) - 1.0 for size in (t, h, w)]
    where = torch.stack(torch.meshgrid(*grids, indexing="ij"), dim=-1).flatten(0, 2)
    where = torch.cat((where, where.new_zeros(d.num_register_tokens + 1, 3)))[None]
    cos, sin = (v.to(dtype) for v in d.rope(where))
    cast = lambda p: p.to(dtype)
    for b in d.transformer_blocks:
        a, f = b.attn, b.ff.net
        tensors = (b.norm1.weight, a.to_q.weight, a.to_k.weight, a.to_v.weight, a.to_q.bias, a.to_k.bias, a.to_v.bias,
                   a.to_out[0].weight, a.to_out[0].bias, b.scale1, b.norm2.weight, f[0].proj.weight, f[0].proj.bias,
                   f[2].weight, f[2].bias, b.scale2)
        x = core(x, cos, sin, *map(cast, tensors), a.heads, b.norm1.eps)
    x = F.layer_norm(x[:, : t * h * w].float(), x.shape[-1:], d.norm_out.weight, d.norm_out.bias, d.norm_out.eps)
    return F.linear(x.to(dtype), cast(d.proj_out.weight), cast(d.proj_out.bias))


def to_tokens(video):
    """Pixels `(n, c, 4 t, h, w)` in the decoder's order: `(n, t h/16 w/16, c * 4 * 16 * 16)`."""
    n, c, t, h, w = video.shape
    x = video.reshape(n, c, t // 4, 4, h // 16, 16, w // 16, 16).permute(0, 2, 4, 6, 1, 3, 5, 7)
    return x.reshape(n, t * h * w // 1024, -1)


def decode_window(vae, latents):
    """22 frames of every window of 7 latent frames: what one step of the chunked decoder sees."""
    return vae.decoder(vae.post_quant_conv(latents))[:, :, WINDOW]


def decode_clip(vae, latents):
    """Batched decode of 5 n + 2 latent frames with the cross-fade of the chunked decoder."""
    chunks = (latents.shape[2] - 2) // 5
    windows = torch.stack([latents[:, :, i * 5 : i * 5 + 7] for i in range(chunks)], dim=1)
    n = latents.shape[0]
    out = decode_window(vae, windows.flatten(0, 1))
    out = out.reshape(n, chunks, *out.shape[1:])
    pieces = []
    fade = (torch.arange(5, device=out.device, dtype=out.dtype) / 5).view(1, 1, 5, 1, 1)
    for i in range(chunks):
        piece = out[:, i, :, :17]
        if i:
            piece = torch.cat((overlap * (1 - fade) + piece[:, :, :5] * fade, piece[:, :, 5:]), dim=2)
        pieces.append(piece)
        overlap = out[:, i, :, 17:]
    return torch.cat(pieces + [overlap], dim=2)


# ------------------------------------------------------------------------------------------------------- audio VAE


def encode_audio(vae, waveform):
    """Mean latents `(n, 2, 32, t)` of stereo waveforms `(n, 2, samples)`."""
    n = waveform.shape[0]
    mean = vae.encode(waveform.reshape(n * 2, 1, -1), return_dict=False)[0].mode()
    return mean.reshape(n, 2, *mean.shape[1:])


def decode_audio(vae, latents):
    n = latents.shape[0]
    wave = vae.decode(latents.flatten(0, 1), return_dict=False)[0]
    return wave.reshape(n, 2, -1)


def quiet_branches(vae):
    """Close the residual branches of both halves, so that they start as identities."""
    for m in vae.modules():
        kind = type(m).__name__
        if kind == "MiniMaxH3AudioResidualUnit":
            last = [m.block[3]]
        elif kind == "MiniMaxH3AudioAMPBlock":
            last = list(m.convs2)
        else:
            continue
        for conv in last:
            conv.weight_g.data.zero_()
            conv.bias.data.zero_()


def audio_encode_trunk(vae, wave):
    """Posterior `(mean, logs)` while the residual branches are closed: they are skipped."""
    x = wave
    for m in vae.encoder.block:
        if type(m).__name__ == "MiniMaxH3AudioEncoderBlock":
            x = m.block[4](m.block[3](x))
        else:
            x = m(x)
    x = vae.pre_block(x.transpose(1, 2)).transpose(1, 2)
    return vae.mean_proj(x), vae.logs_proj(x)


def audio_decode_trunk(vae, z, clamp=True):
    d = vae.decoder
    x = d.conv_pre(vae.dec_in_proj(z))
    for up in d.ups:
        x = up[0](x)
    x = d.conv_post(d.activation_post(x))
    return x.clamp(-1, 1) if clamp else x


# ------------------------------------------------------------------------------------------------------ conditioner


def image_patches(images):
    """`(n, k, 3, h, w)` images in [0, 1] as the image processor's rows: `(n, k * h/16 * w/16, 1536)`, merge-block order."""
    n, k, c, h, w = images.shape
    x = (images - 0.5) / 0.5
    x = x.reshape(n, k, c, h // 32, 2, 16, w // 32, 2, 16)
    x = x.permute(0, 1, 3, 6, 4, 7, 2, 5, 8)  # n k H W mh mw c ph pw
    x = x[:, :, :, :, :, :, :, None].expand(-1, -1, -1, -1, -1, -1, -1, 2, -1, -1)  # the frame twice in time
    return x.reshape(n, k * (h // 16) * (w // 16), c * 2 * 16 * 16)


def vision_forward(visual, images):
    """Batched vision tower: `(n, k, 3, h, w)` images -> merged features `(n, k * tokens, 96)` and deepstack features."""
    n, k, _, h, w = images.shape
    gh, gw = h // 16, w // 16
    device = images.device
    proj = visual.patch_embed.proj
    dtype = proj.weight.dtype
    x = F.linear(image_patches(images).to(dtype), proj.weight.flatten(1), proj.bias)
    x = x.reshape(n * k, gh * gw, -1)

    def merge_order(grid):  # (gh, gw, ...) -> (gh * gw, ...)
        rest = grid.shape[2:]
        grid = grid.reshape(gh // 2, 2, gw // 2, 2, *rest)
        return grid.transpose(1, 2).reshape(gh * gw, *rest)

    side = visual.num_grid_per_side
    table = visual.pos_embed.weight.reshape(side, side, -1).permute(2, 0, 1)[None].float()
    pos = F.interpolate(table, (gh, gw), mode="bilinear", align_corners=True)[0].permute(1, 2, 0)
    x = x + merge_order(pos).to(dtype)

    heads = visual.config.num_heads
    head_dim = x.shape[-1] // heads
    spatial = head_dim // 2
    inv = 1.0 / (10000.0 ** (torch.arange(0, spatial, 2, device=device, dtype=torch.float32) / spatial))
    rows = merge_order(torch.arange(gh, device=device)[:, None].expand(gh, gw)).float()
    cols = merge_order(torch.arange(gw, device=device)[None].expand(gh, gw)).float()
    angles = torch.cat((rows[:, None] * inv, cols[:, None] * inv), dim=-1)
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]

    def rotate(t):
        t = t.float()
        a, b = t.chunk(2, dim=-1)
        return (t * cos + torch.cat((-b, a), dim=-1) * sin).to(dtype)

    deep = []
    for index, block in enumerate(visual.blocks):
        q, key, v = block.attn.qkv(block.norm1(x)).reshape(n * k, gh * gw, 3, heads, head_dim).unbind(2)
        y = F.scaled_dot_product_attention(
            rotate(q).transpose(1, 2), rotate(key).transpose(1, 2), v.transpose(1, 2)
        ).transpose(1, 2)
        x = x + block.attn.proj(y.reshape(n * k, gh * gw, -1))
        x = x + block.mlp(block.norm2(x))
        if index in visual.deepstack_visual_indexes:
            merger = visual.deepstack_merger_list[list(visual.deepstack_visual_indexes).index(index)]
            deep.append(merger(x.reshape(-1, x.shape[-1])).reshape(n, k * gh * gw // 4, -1))
    merged = visual.merger(x.reshape(-1, x.shape[-1])).reshape(n, k * gh * gw // 4, -1)
    return merged, deep


def text_layer(x, cos, sin, n1, wq, wk, wv, nq, nk, wo, n2, wg, wu, wd, eps):
    """A decoder layer of Qwen3-VL as a function of its tensors; `cos`, `sin`: `(1, l, 1, head)`."""
    n, length, _ = x.shape
    width = nq.shape[0]
    heads = wk.shape[0] // width
    h = F.linear(_rms(x, n1, eps), torch.cat((wq, wk, wv))).view(n, length, -1, width)
    q, k, v = h.split((wq.shape[0] // width, heads, heads), dim=2)
    q, k = (_rope(_rms(t, w, eps), cos, sin) for t, w in ((q, nq), (k, nk)))
    k, v = (t.expand(-1, -1, q.shape[2], -1) if heads == 1 else t.repeat_interleave(q.shape[2] // heads, 2)
            for t in (k, v))
    y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
    x = x + F.linear(y.transpose(1, 2).reshape(n, length, -1), wo)
    h = _rms(x, n2, eps)
    return x + F.linear(F.silu(F.linear(h, wg)) * F.linear(h, wu), wd)


@torch.no_grad()
def rotations(lm, x, positions):
    """cos and sin `(1, l, 1, head)` of a `(3, l)` table of positions, in the dtype of `x`."""
    return tuple(t[:, :, None] for t in lm.rotary_emb(x, positions[:, None]))


def text_forward(model, ids, images=None, positions=None, rows=None, rotary=None):
    """Hidden states after TEXT_LAYER layers, `(n, l, 96)`.  All samples share one layout of vision tokens.

    `positions` is the `(3, l)` table of multimodal rotary positions (None: 0, 1, 2 ... on all axes); where the image
    tokens are (`rows`) and the rotations (`rotary`) can be given ready.
    """
    lm = model.model.language_model
    # A product instead of a lookup: the gradient of a lookup waits for the device.
    table = lm.embed_tokens.weight
    x = (ids[..., None] == torch.arange(table.shape[0], device=ids.device)).to(table.dtype) @ table
    deep = None
    if images is not None:
        merged, deep = vision_forward(model.model.visual, images)
        if rows is None:
            rows = (ids[0] == model.config.image_token_id).nonzero()[:, 0]
        x = x.index_copy(1, rows, merged.to(x.dtype))
    if positions is None:
        positions = torch.arange(ids.shape[1], device=ids.device).expand(3, -1)
    cos, sin = rotary or rotations(lm, x, positions)
    for index in range(TEXT_LAYER):
        layer = lm.layers[index]
        a, m = layer.self_attn, layer.mlp
        x = text_layer(x, cos, sin, layer.input_layernorm.weight, a.q_proj.weight, a.k_proj.weight, a.v_proj.weight,
                       a.q_norm.weight, a.k_norm.weight, a.o_proj.weight, layer.post_attention_layernorm.weight,
                       m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight, a.q_norm.variance_epsilon)
        if deep is not None and index < len(deep) and index + 1 < TEXT_LAYER:
            x = x.index_add(1, rows, deep[index].to(x.dtype))
    return x


# -------------------------------------------------------------------------------------------------------------- DiT


class Layout:
    """One packed layout, shared by a batch: rotary table, and per row which timestep and modality it carries."""

    def __init__(self, dit, text_tags, frames_latent, height, width, audio_latents, anchors=(), reference=None,
                 device="cpu"):
        """`height`, `width` in latents; `reference`: latent `(height, width)` of one image reference."""
        patch = tuple(dit.config.patch_size)
        tags = torch.as_tensor(text_tags, dtype=torch.long)
        if reference is None:
            packed = MiniMaxH3PrepareLayoutStep.build_packed_sequence(
                tags, frames_latent, height, width, audio_latents, patch, 2, AUDIO_TAG, VIDEO_TAG, tuple(anchors)
            )
        else:
            from diffusers.modular_pipelines.minimax_h3 import MiniMaxH3ImageReference

            packed = MiniMaxH3Ref2VAPrepareLayoutStep.build_ref2va_packed_sequence(
                tags, [MiniMaxH3ImageReference(image=None)], [torch.empty(1, 24, 1, *reference)], [], frames_latent,
                height, width, audio_latents, patch, 2, AUDIO_TAG, VIDEO_TAG,
            )
        self.position_ids, self.tags, self.video, self.audio, self.text, self.n_condition, _ = packed
        self.length = self.position_ids.shape[0]
        self.n_text = len(tags)
        # Which of the three timesteps a row has: 0 video (text too), 1 audio, 2 condition.
        when = torch.zeros(self.length, dtype=torch.long)
        when[self.audio] = 1
        when[self.video[: self.n_condition]] = 2
        self.when = when
        rows = when * 3 + self.tags
        # Sequence order is text, condition, audio, video in both layouts, so the packed buffer is a concatenation.
        order = torch.cat((self.text, self.video[: self.n_condition], self.audio, self.video[self.n_condition :]))
        assert torch.equal(order, torch.arange(self.length))
        # One-hot rows, padded to a multiple of 8 columns: aligned operands keep the batched products fast.
        self.adaln = F.one_hot(rows, 16).to(device=device, dtype=dit.dtype)
        self.final = F.one_hot(when, 8).to(device=device, dtype=dit.dtype)
        cos, sin = dit.rope.cpu()(self.position_ids)
        dit.rope.to(device)
        self.cos, self.sin = (t.to(device=device, dtype=dit.dtype)[None, :, None] for t in (cos, sin))


def rms(x, norm):
    """nn.RMSNorm with its statistics in float32; the weight's gradient is a plain sum over rows."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + norm.eps)
    return y.to(x.dtype) * norm.weight


def rows_of(one_hot, table):
    """Rows of a per-sample table: `(s, k)` one-hot times `(n, k', d)`, as one contiguous `(n, s, d)`."""
    table = F.pad(table, (0, 0, 0, one_hot.shape[1] - table.shape[1]))
    return torch.bmm(one_hot.expand(table.shape[0], -1, -1), table)


def _rms(x, weight, eps):
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return y.to(x.dtype) * weight


def _rope(t, cos, sin):
    rot = cos.shape[-1]
    a, b = t[..., : rot // 2], t[..., rot // 2 : rot]
    turned = t[..., :rot] * cos + torch.cat((-b, a), dim=-1) * sin
    return torch.cat((turned, t[..., rot:]), dim=-1)


def _attention(x, wq, wk, wv, nq, nk, wo, heads, eps, cos=None, sin=None):
    n, s, _ = x.shape
    q, k, v = F.linear(x, torch.cat((wq, wk, wv))).view(n, s, 3, heads, -1).unbind(2)
    q, k = _rms(q, nq, eps), _rms(k, nk, eps)
    if cos is not None:
        q, k = _rope(q, cos, sin), _rope(k, cos, sin)
    y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return F.linear(y.transpose(1, 2).reshape(n, s, -1), wo)


def _feed_forward(x, w1, w2):
    value, gate = F.linear(x, w1).chunk(2, dim=-1)
    return F.linear(value * F.silu(gate), w2)


def block_core(x, temb, adaln, cos, sin, wa, ba, n1, wq, wk, wv, nq, nk, wo, n2, w1, w2, heads, eps, eps_qk):
    """A DiT block as a function of its tensors, so that one compilation serves all blocks.

    `temb`: `(n, 3, e)` activated timestep embeddings; `adaln`: `(s, 16)` one-hot rows of the modulation table.
    """
    table = F.linear(temb, wa, ba).view(x.shape[0], 9, -1)
    shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = rows_of(adaln, table).chunk(6, dim=-1)
    h = _rms(x, n1, eps) * (1.0 + scale_a) + shift_a
    x = x + gate_a * _attention(h, wq, wk, wv, nq, nk, wo, heads, eps_qk, cos, sin)
    return x + gate_m * _feed_forward(_rms(x, n2, eps) * (1.0 + scale_m) + shift_m, w1, w2)


def refiner_core(x, n1, wq, wk, wv, nq, nk, wo, n2, w1, w2, heads, eps, eps_qk):
    x = x + _attention(_rms(x, n1, eps), wq, wk, wv, nq, nk, wo, heads, eps_qk)
    return x + _feed_forward(_rms(x, n2, eps), w1, w2)


def _tensors(block):
    a = block.attn
    return (block.norm1.weight, a.to_q.weight, a.to_k.weight, a.to_v.weight, a.norm_q.weight, a.norm_k.weight,
            a.to_out[0].weight, block.norm2.weight, block.ff.net[0].proj.weight, block.ff.net[2].weight,
            a.heads, block.norm1.eps, a.norm_q.eps)


def dit_forward(dit, video, audio, text, t_video, t_audio, layout, core=block_core, refiner=refiner_core):
    """Velocities of a batch.  `video` holds condition rows first, like the pipeline; `t_*` are `(n,)` in [0, 1]."""
    dtype = dit.context_embedder.weight.dtype
    times = torch.stack((t_video, t_audio, torch.full_like(t_video, CONDITION_T)), dim=1)
    temb = dit.time_embedder(dit.time_proj(times.flatten().float()).to(dit.time_embedder.linear_1.weight.dtype))
    temb = F.silu(temb).view(len(t_video), 3, -1).to(dtype)
    t = dit.context_embedder(text.to(dtype))
    for block in dit.token_refiner.refiner_blocks:
        t = refiner(t, *_tensors(block))
    t = rms(t, dit.token_refiner.final_norm)
    v = dit.proj_in(video.to(dit.proj_in.weight.dtype)).to(dtype)
    a = dit.audio_proj_in(audio.to(dit.audio_proj_in.weight.dtype)).to(dtype)
    k = layout.n_condition
    x = torch.cat((t, v[:, :k], a, v[:, k:]), dim=1)
    for block in dit.transformer_blocks:
        linear = block.adaln_proj.linear
        x = core(x, temb, layout.adaln, layout.cos, layout.sin, linear.weight, linear.bias, *_tensors(block))
    shift, scale = rows_of(layout.final, dit.norm_out.linear(temb)).chunk(2, dim=-1)
    x = rms(x, dit.norm_out.norm) * (1.0 + scale) + shift
    start = layout.n_text + k
    n_audio = len(layout.audio)
    heads = dit.proj_out.weight.dtype
    return (dit.proj_out(x[:, start + n_audio :].to(heads)),
            dit.audio_proj_out(x[:, start : start + n_audio].to(heads)))


def patchify(latents):
    """`(n, 24, t, h, w)` -> `(n, rows, 96)`."""
    n, c, t, h, w = latents.shape
    x = latents.reshape(n, c, t, h // 2, 2, w // 2, 2).permute(0, 2, 3, 5, 1, 4, 6)
    return x.reshape(n, t * (h // 2) * (w // 2), c * 4)


def unpatchify(rows, t, h, w):
    n = rows.shape[0]
    x = rows.reshape(n, t, h // 2, w // 2, 24, 2, 2).permute(0, 4, 1, 2, 5, 3, 6)
    return x.reshape(n, 24, t, h, w)


def audio_rows(latents):
    """`(n, 2, 32, t)` -> channel-major rows `(n, 2 t, 32)`."""
    n, c, d, t = latents.shape
    return latents.permute(0, 1, 3, 2).reshape(n, c * t, d)


def shifted(u, shift):
    return shift * u / (1.0 + (shift - 1.0) * u)


def cast_like_checkpoint(dit, dtype):
    """bf16 body with float32 islands, as the released checkpoint has them."""
    dit.to(dtype)
    for name in ("proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out", "rope"):
        getattr(dit, name).float()
    return dit


def count(module):
    return sum(p.numel() for p in module.parameters())


if __name__ == "__main__":
    total = 0
    for name, model in (("video VAE", build_video_vae()), ("audio VAE", build_audio_vae()), ("DiT", build_dit()),
                        ("conditioner", build_text_encoder())):
        print(f"{name:12s} {count(model):>9,d}")
        total += count(model)
    print(f"{'total':12s} {total:>9,d}  {2 * total / 1e6:.2f} MB at two bytes")
