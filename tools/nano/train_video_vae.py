"""Train the two halves of the video VAE, each alone, on the linear code of lincode.py.

    python train_video_vae.py encoder --seconds 60 --out weights     # regresses the code from pixels
    python train_video_vae.py decoder --seconds 240 --out weights    # draws the pixels that a code stands for
    python train_video_vae.py join --out weights                     # one file, latent statistics, PSNR

Both start as linear maps (`initial_encoder`, `initial_decoder`), without which neither leaves the mean colour.  A stage
goes on from its own checkpoint in `--out` when there is one and `--resume` is given.
"""

import argparse
import json
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import lincode
import nets
import optim
import world

# Canvases whose sizes occur as one tile: multiples of 32 up to 256.
CANVASES = [
    (256, 256, 10), (128, 128, 2), (192, 256, 2), (256, 192, 2), (160, 256, 1), (256, 160, 1), (192, 192, 0.5),
    (224, 256, 0.5), (256, 224, 0.5), (128, 256, 0.5), (256, 128, 0.5), (64, 64, 0.2),
]
LOGVAR = -8.0  # a narrow posterior: the code is what there is


def canvas_of(rng, toy):
    if toy:
        return 64, 64
    weights = np.array([c[2] for c in CANVASES], dtype=np.float64)
    h, w, _ = CANVASES[rng.choice(len(CANVASES), p=weights / weights.sum())]
    return h, w


def render_window(rng, device, h, w, n, with_mask=False):
    """22 frames out of clips of several lengths, as one decoding window sees them."""
    frames = int(rng.choice((22, 56, 124), p=(0.4, 0.4, 0.2)))
    s = world.sample_scenes(rng, n, h, w, frames, free_colours=0.15)
    first = 17 * int(rng.integers(0, (frames - 5) // 17))
    return world.render(s, frames, device, with_mask=with_mask, only_frames=range(first, first + 22))


# ------------------------------------------------------------------------------------------------------------ encoder


def trunk_encoder(vae, code, seed=12, clips=48, size=128):
    """Encoder weights that compute the code of four frames nearly exactly.

    The residual branches start closed.  The strided convolutions deal 2x2 pixels out to channels, then project blocks
    of 2x2 (by two frames) onto their leading singular vectors.  A constant channel runs along from the first
    convolution: it dominates the last group norm, which is thereby linear, and it shrinks like the signal where frames
    are missing (a chunk's first frame), so that the norm makes up for them.  A zero channel tells what mean the norm
    has taken away.
    """
    device = code.basis.device
    encoder = vae.encoder
    generator = torch.Generator().manual_seed(seed)
    for level in encoder.down_blocks:
        for r in level.resnets:
            r.conv2.weight.zero_()
            r.conv2.bias.zero_()
            if r.conv_shortcut is not None:
                r.conv_shortcut.weight.zero_()
                r.conv_shortcut.bias.zero_()
        for d in level.downsamplers or ():
            d.conv.weight.zero_()
            d.conv.bias.zero_()
    for conv in (encoder.conv_in, encoder.conv_out, vae.quant_conv):
        conv.weight.zero_()
        conv.bias.zero_()
    constant = 64.0

    rng = np.random.default_rng(seed)
    s = world.sample_scenes(rng, clips, size, size, 22, free_colours=0.25)
    video = world.normalize(world.render(s, 22, device))[:, :, :17]
    target = code.clip(torch.cat((video, video[:, :, :5]), 2))[:, :, 1:5]  # frames 1..16

    for c in range(3):
        encoder.conv_in.weight[c, c, 2, 1, 1] = 1
    encoder.conv_in.bias[3] = constant
    x = encoder.conv_in(video)
    active, mark = 3, 3  # signal channels, the constant channel
    for index in range(4):
        level = encoder.down_blocks[index]
        shortcut = level.resnets[0].conv_shortcut
        if shortcut is not None:
            for q in (*range(active), mark):
                shortcut.weight[q, q, 0, 0, 0] = 1
            x = shortcut(x)
        conv = level.downsamplers[0].conv
        width = conv.out_channels
        taps = (1, 2) if conv.stride[0] == 2 else (2,)
        if index == 0:
            for dy in range(2):
                for dx in range(2):
                    for c in range(3):
                        conv.weight[(dy * 2 + dx) * 3 + c, c, 2, dy, dx] = 1
            active, keep = 12, 12
        else:
            # Blocks as rows: (frame tap, dy, dx, channel).
            y = x[:, :active]
            frames = [y[:, :, 1:-1:2], y[:, :, 2::2]] if len(taps) == 2 else [y[:, :, 1:]]
            blocks = lambda frames: torch.stack(
                [f[..., dy::2, dx::2] for f in frames for dy in range(2) for dx in range(2)], dim=1
            ).permute(0, 3, 4, 5, 1, 2).reshape(-1, len(frames) * 4 * active)
            rows = blocks(frames)
            if index < 3:
                keep = width - 1
                spread = rows.view(len(rows), -1, active).std(dim=1).mean(dim=1)
                weight = torch.where(spread > 0.05, 1.0, 0.05)[:, None].double()
                moment = (rows.double() * weight).T @ rows.double()
                vectors = torch.linalg.eigh(moment.cpu())[1].flip(1)[:, :keep].float().to(device)
                offset = None
            else:
                keep = 24
                wanted = target.permute(0, 2, 3, 4, 1).reshape(-1, keep)
                # A lone first frame, a quarter as strong here.
                rows = torch.cat((rows, 4 * blocks([y[:, :, :1]])))
                wanted = torch.cat((wanted, code.frame1(video[:, :, :1]).permute(0, 2, 3, 4, 1).reshape(-1, keep)))
                design = torch.cat((rows, torch.ones_like(rows[:, :1])), 1).double()
                gram = (design.T @ design).cpu()
                gram += 1e-7 * gram.trace() / len(gram) * torch.eye(len(gram), dtype=gram.dtype)
                solution = torch.linalg.solve(gram, (design.T @ wanted.double()).cpu()).float().to(device)
                vectors, offset = solution[:-1], solution[-1]
            channels = range(keep) if index < 3 else [8 * g + k for g in range(4) for k in range(2, 8)]
            for j, (tap, dy, dx) in enumerate((tap, dy, dx) for tap in taps for dy in range(2) for dx in range(2)):
                block = vectors[j * active : (j + 1) * active]  # (channel in, component)
                for k, q in enumerate(channels):
                    conv.weight[q, :active, tap, dy, dx] = block[:, k]
            active = keep
        # The constant, averaged over the frames so that it shrinks as a still picture does.
        for q in (width - 1,) if index < 3 else range(0, 32, 8):
            for tap in taps:
                conv.weight[q, mark, tap, 0, 0] = 1.0 / len(taps)
        mark = width - 1
        x = level.downsamplers[0](x)
    # Group of 8: the constant, zero, six signals.
    lift = torch.tensor(2.4)  # where silu has no curvature
    encoder.norm_out.weight.fill_(1.0)
    encoder.norm_out.bias.fill_(lift)
    deviation = (constant**2 * 7 / 64 + 6 / 8) ** 0.5
    slope = torch.sigmoid(lift) * (1 + lift * (1 - torch.sigmoid(lift)))
    for k, q in enumerate(channels):
        encoder.conv_out.weight[k, q, 2, 1, 1] = deviation / slope
        encoder.conv_out.weight[k, q // 8 * 8 + 1, 2, 1, 1] = -deviation / slope
    encoder.conv_out.bias[:24] = offset
    vae.quant_conv.weight[range(24), range(24), 0, 0, 0] = 1
    vae.quant_conv.bias[24:] = LOGVAR
    # Weights that start at zero get small values, so that they can learn.
    for conv in [m for m in vae.encoder.modules() if isinstance(m, torch.nn.Conv3d)]:
        conv.weight += torch.where(conv.weight == 0, 1.0, 0.0) * 1e-3 * torch.randn(
            conv.weight.shape, generator=generator).to(device) * conv.weight[0].numel() ** -0.5


@torch.no_grad()
def initial_encoder(vae, code, **options):
    vae.to(code.basis.device)
    for level in vae.encoder.down_blocks:
        for r in level.resnets:
            r.conv1.weight.normal_(0, r.conv1.weight[0].numel() ** -0.5)
            r.conv1.bias.zero_()
    keep = {n: p.clone() for n, p in vae.encoder.named_parameters() if ".conv1." in n}
    trunk_encoder(vae, code, **options)
    for n, p in vae.encoder.named_parameters():
        if ".conv1." in n:
            p.copy_(keep[n])
    # The first convolution and level only deal pixels out; they stay as they are (see from_level1).
    first = vae.encoder.down_blocks[0]
    for r in first.resnets:
        r.conv2.weight.zero_()
        r.conv2.bias.zero_()
    for conv in (vae.encoder.conv_in, first.downsamplers[0].conv):
        conv.weight.copy_(torch.where(conv.weight.abs() < 0.5, 0.0, conv.weight))
    return vae


def from_level1(vae, video):
    """The encoder's moments; its first level (which deals pixels out to channels) is done by an index shuffle."""
    n, _, t, h, w = video.shape
    x = video.reshape(n, 3, t, h // 2, 2, w // 2, 2).permute(0, 4, 6, 1, 2, 3, 5).reshape(n, 12, t, h // 2, w // 2)
    bias = vae.encoder.conv_in.bias
    width = vae.encoder.down_blocks[0].downsamplers[0].conv.out_channels
    rest = x.new_zeros(n, width - 12, t, h // 2, w // 2)
    rest[:, -1] = bias[3].to(x.dtype)
    x = torch.cat((x, rest), dim=1)
    for level in vae.encoder.down_blocks[1:]:
        x = level(x)
    return vae.quant_conv(vae.encoder.conv_out(F.silu(vae.encoder.norm_out(x))))


def encoder_loss(vae, code, video, weight):
    """`video`: normalized, one frame or 17."""
    moments = from_level1(vae, video)
    error = moments[:, :24] - (code.frame1(video) if video.shape[2] == 1 else
                               torch.cat((code.frame1(video[:, :, :1]), code.frames4(video[:, :, 1:])), 2))
    spread = (moments[:, 24:] - LOGVAR).square().mean()
    square = error.square().mean((0, 3, 4)) * weight[:, None]
    return square.mean() + 1e-3 * spread, error


def train_encoder(args, device):
    rng = np.random.default_rng(args.seed)
    code = lincode.load(os.path.join(args.out, "code.safetensors"), device)
    vae = initial_encoder(nets.build_video_vae(), code, size=64 if args.toy else 128, clips=8 if args.toy else 48)
    path = os.path.join(args.out, "encoder.safetensors")
    if args.resume and os.path.exists(path):
        vae.load_state_dict({k: v.float() for k, v in load_file(path).items()}, strict=False)
    vae.requires_grad_(False)
    for m in (*vae.encoder.down_blocks[1:], vae.encoder.norm_out, vae.encoder.conv_out, vae.quant_conv):
        m.requires_grad_(True)
    trainer = optim.Trainer([vae], args.lr or 4e-4, ema=0.99, weight_decay=0.0)
    # How much a number moves the pixels counts too: a colour more than a ripple.
    power = code.basis.flatten(0, 3).square().sum(0).rsqrt()
    weight = 1 + 4 * power / power.max()
    clock = optim.Clock(args.seconds, warmup=20, hold=0.4)
    total, count = 0.0, 0
    while not clock.done():
        h, w = canvas_of(rng, args.toy)
        n = int(max(1, args.pixels // (h * w * 22)))
        video = world.normalize(render_window(rng, device, h, w, n))
        loss, error = encoder_loss(vae, code, video[:, :, :17], weight)
        stills = video[:, :, ::5].transpose(1, 2).reshape(-1, 3, 1, h, w)
        single, error1 = encoder_loss(vae, code, stills, weight)
        (loss + single).backward()
        trainer.step(clock.scale(trainer.steps))
        total, count = total + error.detach().square().mean() + error1.detach().square().mean(), count + 2
        if trainer.steps % (50 if device == "cuda" else 5) == 0:
            print(f"encoder step {trainer.steps} {clock.elapsed:.1f} s, rms error of the code "
                  f"{(float(total) / count) ** 0.5:.4f}, last {error.square().mean().sqrt().item():.4f} clip "
                  f"{error1.square().mean().sqrt().item():.4f} frame", flush=True)
            total, count = 0.0, 0
    trainer.load_average()
    state = {k: v.half().cpu().clone() for k, v in vae.state_dict().items() if k.startswith(("encoder.", "quant_conv."))}
    save_file(state, path)


# ------------------------------------------------------------------------------------------------------------ decoder


@torch.no_grad()
def initial_decoder(vae, code, seed=12, clips=48, size=128):
    """The decoder starts as the least-squares inverse of the code, read off the tokens as they come in."""
    device = code.basis.device
    generator = torch.Generator().manual_seed(seed)
    noise = lambda shape, std: torch.randn(shape, generator=generator).to(device) * std
    decoder = vae.to(device).decoder
    for name, p in decoder.named_parameters():
        if "scale" in name:
            p.fill_(1.0)
        elif "register" in name:
            p.copy_(noise(p.shape, 0.5))
        elif ".to_out.0." in name or ".ff.net.2." in name:
            p.zero_()
        elif name.endswith("proj.weight") or ".to_" in name and name.endswith("weight"):
            p.copy_(noise(p.shape, p.shape[1] ** -0.5))
        elif name.endswith("bias"):
            p.zero_()
    vae.post_quant_conv.weight.zero_()
    vae.post_quant_conv.weight[range(24), range(24), 0, 0, 0] = 1
    vae.post_quant_conv.bias.zero_()
    # Constant channels keep the last layer norm from losing the size of the signal.
    decoder.proj_in.weight.copy_(noise(decoder.proj_in.weight.shape, 0.05))
    decoder.proj_in.bias.zero_()
    decoder.proj_in.weight[range(24), range(24)] += 1
    decoder.proj_in.bias[-2], decoder.proj_in.bias[-1] = 12.0, -12.0

    rng = np.random.default_rng(seed)
    s = world.sample_scenes(rng, clips, size, size, 22, free_colours=0.25)
    video = world.normalize(world.render(s, 22, device))[:, :, :17]
    z = code.clip(torch.cat((video, video[:, :, :5]), 2))[:, :, :5]
    tokens = z.permute(0, 2, 3, 4, 1).reshape(-1, 24)
    features = decoder.norm_out(decoder.proj_in(tokens))
    full = torch.cat((video[:, :, :1].expand(-1, -1, 3, -1, -1), video), dim=2)  # frames -3..16
    side = size // 16
    patches = full.reshape(clips, 3, 5, 4, side, 16, side, 16).permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(len(tokens), -1)
    design = torch.cat((features, torch.ones_like(features[:, :1])), dim=1).double()
    gram = (design.T @ design).cpu()
    gram += 1e-6 * gram.trace() / len(gram) * torch.eye(len(gram), dtype=gram.dtype)
    solution = torch.linalg.solve(gram, (design.T @ patches.double()).cpu()).float().to(device)
    decoder.proj_out.weight.copy_(solution[:-1].T)
    decoder.proj_out.bias.copy_(solution[-1])
    return vae


class Windows:
    """Rendered windows of one canvas, as codes and as bytes in the decoder's order; rendered once, drawn many times."""

    def __init__(self, height, width, capacity, code):
        self.height, self.width, self.capacity, self.code, self.n = height, width, capacity, code, 0
        device, tokens = code.basis.device, 7 * height * width // 256
        self.z = torch.empty(capacity, 24, 7, height // 16, width // 16, device=device)
        self.pixels = torch.empty(capacity, tokens, 3072, device=device, dtype=torch.uint8)
        self.near = torch.empty(capacity, tokens, 1024, device=device, dtype=torch.uint8)

    def grow(self, rng, count):
        count = min(count, self.capacity - self.n)
        if count <= 0:
            return
        video, mask = render_window(rng, self.code.basis.device, self.height, self.width, count, with_mask=True)
        # Windows start three frames early, and the third of five fades is thrown away: what a window keeps is WINDOW.
        frames = video.new_zeros(count, 3, 28, self.height, self.width, dtype=torch.uint8)
        weight = video.new_zeros(count, 1, 28, self.height, self.width, dtype=torch.uint8)
        frames[:, :, nets.WINDOW] = (video * 255).round().byte()
        weight[:, :, nets.WINDOW] = 1 + (near(mask) > 0).byte()  # 0: does not count, 1: background, 2: near a shape
        rows = slice(self.n, self.n + count)
        self.z[rows] = self.code.clip(world.normalize(video))
        self.pixels[rows], self.near[rows] = nets.to_tokens(frames), nets.to_tokens(weight)
        self.n += count

    def draw(self, count):
        index = torch.randint(0, self.n, (count,), device=self.z.device)
        return self.z[index], self.pixels[index], self.near[index]


def near(mask):
    """Above 0 within four pixels of a shape."""
    return F.max_pool3d(F.max_pool3d(mask, (1, 9, 1), 1, (0, 4, 0)), (1, 1, 9), 1, (0, 0, 4))


def pixel_loss(y, pixels, near, mean, std):
    """Decoder tokens `(n, k, 3072)` against bytes in the same order; the loss and the mean square error in [0, 1]."""
    n, k, _ = y.shape
    diff = y.view(n, k, 3, 1024).float() - (pixels.view(n, k, 3, 1024).float() / 255 - mean) / std
    kind = near[:, :, None].float()
    counts = (kind > 0).float()
    weight = counts * (1.0 + 6.0 * (kind - 1.0))
    loss = (weight * (4 * diff.square() + 0.5 * diff.abs())).sum() / (3 * weight.sum())
    square = (counts * (diff * std).square()).sum() / (3 * counts.sum())
    return loss, square.detach()


def train_decoder(args, device):
    rng = np.random.default_rng(args.seed + (1000 if args.resume else 0))
    code = lincode.load(os.path.join(args.out, "code.safetensors"), device)
    vae = initial_decoder(nets.build_video_vae(), code, size=64 if args.toy else 128, clips=8 if args.toy else 48)
    path = os.path.join(args.out, "decoder.safetensors")
    if args.resume and os.path.exists(path):
        vae.load_state_dict({k: v.float() for k, v in load_file(path).items()}, strict=False)
    vae.requires_grad_(False)
    vae.decoder.requires_grad_(True)
    vae.post_quant_conv.requires_grad_(True)
    trainer = optim.Trainer([vae], args.lr or 4e-3, ema=0.998, weight_decay=0.0, adam_scale=0.25,
                            muon=optim.matrices(vae.decoder.transformer_blocks))
    core, measure = nets.vit_core, pixel_loss
    if args.compile:
        core = nets.compiled(core, (0, (0, 1)), (1, (1,)), (2, (1,)))
        measure = nets.compiled(measure, (0, (0, 1)), (1, (0, 1)), (2, (0, 1)))
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    mean, std = (torch.tensor(v, device=device).view(1, 1, 3, 1) for v in (world.PIXEL_MEAN, world.PIXEL_STD))
    table = [(64, 64, 1)] if args.toy else CANVASES
    most = 64 if args.toy else 2048  # windows of 256 x 256 pixels' worth, for the main canvas
    stores = [Windows(h, w, int(most * min(1.0, share / 4) ** 0.5 * (65536 / (h * w)) ** 0.5 * 0.9) if share < 4 else most,
                      code) for h, w, share in table]
    shares = np.array([c[2] for c in table], dtype=np.float64)
    for store in stores:
        store.grow(rng, 16 if args.toy else 64)
    clock = optim.Clock(args.seconds, args.since, 1.0, warmup=100, hold=0.4)
    total, count, saved, mark = 0.0, 0, time.time(), time.time()

    def save():
        average = trainer.average_of()
        state = {n: average.get(id(p), p.detach()) for n, p in vae.named_parameters()
                 if n.startswith(("decoder.", "post_quant_conv."))}
        save_file({k: v.half().cpu().clone() for k, v in state.items()}, path + ".new")
        os.replace(path + ".new", path)

    while not clock.done():
        store = stores[rng.choice(len(stores), p=shares / shares.sum())]
        n = int(max(1, args.pixels // (store.height * store.width * 22)))
        z, pixels, weight = store.draw(n)
        # The decoder has to bear the errors of a diffusion model.
        z = z + args.noise * torch.rand(n, 1, 1, 1, 1, device=device).square() * torch.randn_like(z)
        loss, square = measure(nets.decode_tokens(vae, z, core, dtype), pixels, weight, mean, std)
        loss.backward()
        trainer.step(clock.scale(trainer.steps))
        total, count = total + square, count + 1
        if trainer.steps % 8 == 0:
            growing = [s for s in stores if s.n < s.capacity]
            if growing:
                min(growing, key=lambda s: s.n / s.capacity).grow(rng, 32)
        if trainer.steps % (250 if device == "cuda" else 10) == 0:
            print(f"decoder step {trainer.steps} {clock.elapsed:.1f} s, PSNR "
                  f"{-10 * np.log10(float(total) / count):.2f} dB, {count / (time.time() - mark):.1f} steps a second, "
                  f"{sum(s.n for s in stores)} windows", flush=True)
            total, count, mark = 0.0, 0, time.time()
            if time.time() - saved > 60:
                save()
                saved = time.time()
    save()


# --------------------------------------------------------------------------------------------------------------- join


@torch.no_grad()
def statistics(code, rng, device, clips=96):
    """Mean and deviation of the latents over the canvases the DiT is trained on."""
    parts = []
    for h, w in ((256, 256), (192, 256), (256, 192)):
        for frames in (22, 56):
            s = world.sample_scenes(rng, max(2, clips // 6), h, w, frames)
            for i in range(0, s.n, 4):
                video = world.render(s.take(np.arange(i, min(s.n, i + 4))), frames, device)
                parts.append(code.clip(world.normalize(video)).permute(1, 0, 2, 3, 4).flatten(1))
    flat = torch.cat(parts, dim=1)
    return flat.mean(1).tolist(), (flat.std(1) / lincode.SPREAD).tolist()


@torch.no_grad()
def score(vae, code, rng, device, clips=8, sizes=((256, 256, 22), (192, 256, 56))):
    """PSNR: from the encoder (all, patches with structure), from the code itself, and the encoder's rms error."""
    out = {}
    for h, w, frames in sizes:
        s = world.sample_scenes(rng, clips, h, w, frames)
        video = world.render(s, frames, device)
        x = world.normalize(video)
        exact = code.clip(x)
        z = nets.encode_clip(vae, x)[:, :24]
        row = [round((z - exact).square().mean().sqrt().item(), 4)]
        for latent in (z, exact):
            y = world.denormalize(torch.cat([nets.decode_clip(vae, p) for p in latent.split(4)])).clamp(0, 1)
            error = (y - video).square().mean(1)
            patches = lambda v: v[:, 1:21].reshape(-1, 5, 4, h // 16, 16, w // 16, 16).permute(0, 1, 3, 5, 2, 4, 6)
            busy = torch.stack([patches(video[:, c]).flatten(4) for c in range(3)], -1).flatten(4).std(-1) > 0.05
            part = patches(error).flatten(4).mean(-1)[busy]
            row += [round(-10 * torch.log10(v.mean()).item(), 2) for v in (error, part)]
        out[f"{w}x{h}x{frames}"] = dict(zip(("code error", "all", "structure", "all from code", "structure from code"),
                                            row))
    return out


def join(args, device):
    code = lincode.load(os.path.join(args.out, "code.safetensors"), device)
    vae = nets.build_video_vae()
    state = {}
    for name in ("encoder", "decoder"):
        state.update(load_file(os.path.join(args.out, f"{name}.safetensors")))
    vae.load_state_dict({k: v.float() for k, v in state.items()})
    vae.to(device).eval().disable_tiling()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    latents = os.path.join(args.out, "latents.json")
    if os.path.exists(latents):  # those the DiT is trained with
        with open(latents) as f:
            stats = json.load(f)
    else:
        stats = dict(zip(("latents_mean", "latents_std"), statistics(code, np.random.default_rng(99), device)))
    save_file({k: v.contiguous() for k, v in state.items()}, os.path.join(args.out, "video_vae.safetensors"))
    result = score(vae, code, np.random.default_rng(5), device, 2 if args.toy or device == "cpu" else 16,
                   ((64, 64, 22),) if args.toy else ((256, 256, 22), (192, 256, 56)))
    with open(os.path.join(args.out, "video_vae.json"), "w") as f:
        json.dump(dict(**stats, score=result), f)
    print(json.dumps(result), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("stage", choices=("encoder", "decoder", "join"))
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--out", default="weights")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=None)
    parser.add_argument("--pixels", type=float, default=None, help="pixels (all frames) in a batch")
    parser.add_argument("--noise", type=float, default=0.2)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--since", type=float, default=0.0, help="where in the schedule this run starts (0 to 1)")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--toy", action="store_true", help="64 pixel canvases, for a CPU smoke test")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "code.safetensors")
    if not os.path.exists(path):
        lincode.fit(clips=16 if args.toy else 96, device=device).save(path)
    if args.stage == "join":
        return join(args, device)
    args.pixels = args.pixels or (3e5 if args.toy else 24e6 if args.stage == "encoder" else 32 * 256 * 256 * 22)
    (train_encoder if args.stage == "encoder" else train_decoder)(args, device)


if __name__ == "__main__":
    main()
