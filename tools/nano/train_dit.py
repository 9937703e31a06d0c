"""Train the DiT and the conditioner together by rectified flow, in the conventions of the released model.

    python train_dit.py --seconds 480 --weights weights --out weights               # one device
    torchrun --nproc-per-node 2 train_dit.py --seconds 480 --weights weights ...    # several

Data-ward velocity (x0 - noise), t = 1 is clean, one u drives both schedules through the shifts 12 (video) and 3
(audio), conditions sit at t = 0.999, text rows take the video timestep.  Video latents are those of the linear code, so
neither half of the video VAE is needed here.  A run goes on from its own state (`--resume`).
"""

import argparse
import json
import os
import time

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import data
import lincode
import nets
import optim
import train_video_vae

# height, width, frames, clips kept, share of the training time; before and after TURN of the run
POOLS = (
    (256, 256, 22, 36000, 0.60, 0.22),
    (256, 256, 56, 36000, 0.25, 0.60),
    (256, 256, 39, 3000, 0.05, 0.04),
    (256, 256, 90, 1500, 0.00, 0.02),
    (256, 256, 124, 1500, 0.04, 0.04),
    (192, 256, 22, 2500, 0.02, 0.01),
    (256, 192, 22, 2500, 0.02, 0.01),
    (192, 256, 56, 2500, 0.02, 0.03),
    (256, 192, 56, 2500, 0.00, 0.03),
)
MAIN = ((256, 256, 22), (256, 256, 56))
TOY_POOLS = ((64, 64, 22, 32, 0.7, 0.5), (64, 96, 39, 16, 0.3, 0.5))
TURN = 0.45
# tasks of a step, before and after CONDITIONS of the run
CONDITIONS = 0.2
TASK_SHARES = ((1.0, 0.0, 0.0), (0.66, 0.10, 0.24))


def load_audio(folder):
    with open(os.path.join(folder, "audio_vae.json")) as f:
        stats = json.load(f)
    model = nets.build_audio_vae(latents_mean=stats["latents_mean"], latents_std=stats["latents_std"])
    state = {k: v.float() for k, v in load_file(os.path.join(folder, "audio_vae.safetensors")).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(k.endswith(("filter", "zero_k_bias")) for k in missing), (missing, unexpected)
    return model, stats


def load_codec(folder, device, toy=False):
    """The codec of the training: the code with the statistics of its latents (made if there are none yet)."""
    code = lincode.load(os.path.join(folder, "code.safetensors"), device)
    path = os.path.join(folder, "latents.json")
    if os.path.exists(path):
        with open(path) as f:
            stats = json.load(f)
    else:
        mean, std = train_video_vae.statistics(code, np.random.default_rng(99), device, 12 if toy else 96)
        stats = dict(latents_mean=mean, latents_std=std)
        with open(path, "w") as f:
            json.dump(stats, f)
    audio, audio_stats = load_audio(folder)
    return data.Codec(code, stats, audio, audio_stats, device)


def freeze_unused(text):
    """What the released model never reads: the layer after the conditioning, the final norm and the head."""
    lm = text.model.language_model
    for module in (lm.layers[nets.TEXT_LAYER], lm.norm):
        module.requires_grad_(False)
    return text


@torch.no_grad()
def start(dit, text):
    """Initial weights: small modulation, half-open gates, silent output heads, sizable word vectors."""
    for block in dit.transformer_blocks:
        block.adaln_proj.linear.weight.normal_(0, 0.02)
        bias = block.adaln_proj.linear.bias.view(3, 6, -1)
        bias.zero_()
        bias[:, 2] = bias[:, 5] = 0.5
    dit.norm_out.linear.weight.normal_(0, 0.02)
    dit.norm_out.linear.bias.zero_()
    dit.proj_out.weight.zero_()
    dit.audio_proj_out.weight.zero_()
    lm = text.model.language_model
    lm.embed_tokens.weight.normal_(0, 0.5)
    for layer in lm.layers[: nets.TEXT_LAYER]:
        for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj, layer.self_attn.o_proj,
                       layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            linear.weight.normal_(0, linear.weight.shape[1] ** -0.5)


class Presentation:
    """What all samples of one layout share."""

    def __init__(self, layout, rotary, ids, rows):
        self.layout, self.rotary, self.ids, self.rows = layout, rotary, ids, rows


class Conditioning:
    """Layouts and presentations by geometry, cached."""

    def __init__(self, dit, text, device):
        self.dit, self.text, self.device, self.cache = dit, text, device, {}

    def get(self, pool, task, prompt_length, anchors):
        key = (pool.key, task, prompt_length, anchors)
        if key not in self.cache:
            head, reference = data.Head([], [], []), None
            if task == "fl2va":
                head = data.presentation(len(anchors), pool.height, pool.width)
            if task == "ref2va":
                head = data.presentation(1, nets.REFERENCE_EDGE, nets.REFERENCE_EDGE)
                reference = (nets.REFERENCE_EDGE // 16,) * 2
            tags = head.tags + [nets.TEXT_TAG] * prompt_length
            layout = nets.Layout(self.dit, tags, pool.t, pool.h, pool.w, pool.a, anchors, reference, self.device)
            lm = self.text.model.language_model
            rotary = nets.rotations(lm, lm.embed_tokens.weight[:1].detach(),
                                    data.rotary_positions(head, prompt_length).to(self.device))
            ids = torch.tensor(head.ids, device=self.device, dtype=torch.long)
            rows = torch.tensor([i for i, t in enumerate(head.ids) if t == data.IMAGE_PAD], device=self.device)
            self.cache[key] = Presentation(layout, rotary, ids, rows)
        return self.cache[key]


def condition_rows(codec, images):
    """Rows of condition frames `(n, k, 3, h, w)`, as the encoder's narrow posterior and the anchor mix leave them."""
    n, k = images.shape[:2]
    z = codec.encode_video(images.reshape(n * k, *images.shape[2:])[:, :, None])
    z = z + 0.02 * lincode.SPREAD * torch.randn_like(z)
    z = nets.CONDITION_T * z + (1 - nets.CONDITION_T) * torch.randn_like(z)
    return nets.patchify(z).reshape(n, -1, 96)


def predict(dit, text, shown, ids, images, rows, x_video, x_audio, t_video, t_audio, cores):
    ids = torch.cat((shown.ids.expand(ids.shape[0], -1), ids), dim=1)
    hidden = nets.text_forward(text, ids, images, rows=shown.rows, rotary=shown.rotary)
    video = x_video if rows is None else torch.cat((rows, x_video), dim=1)
    return nets.dit_forward(dit, video, x_audio, hidden, t_video, t_audio, shown.layout, *cores)


ANCHORS = (("first",), ("first",), ("last",), ("first", "last"))


def noise_levels(n, device, near):
    """How far to pure noise, before the shift: stratified over [0, 1], a share `near` of it where shapes are decided."""
    u = (torch.rand(n, device=device) + torch.arange(n, device=device)) / n
    # Every so many samples one comes from a hump over [0, 0.7] instead.
    hump = 0.35 * (torch.rand(n, device=device) + torch.rand(n, device=device))
    return torch.where(torch.rand(n, device=device) < near, hump, u)


class Levels:
    """What a loss is at every noise level, as running means over bins of u.

    Where nothing is decided yet the loss is some twenty times what it is where outlines are drawn, and nothing can be done
    about most of it.  Divided by its own mean at that level, every level has an equal say.
    """

    BINS = 20

    def __init__(self, device):
        self.means = torch.ones(2, self.BINS, device=device)

    def divide(self, u, *losses):
        """`losses`: `(n,)` each."""
        bins = ((u * self.BINS).long().clamp(0, self.BINS - 1)[:, None] == torch.arange(self.BINS, device=u.device)).float()
        values = torch.stack([loss.detach() for loss in losses])
        count = bins.sum(0)
        fresh = values @ bins / count.clamp(min=1)
        self.means.add_((fresh - self.means) * (0.03 * count.clamp(max=1)))
        return [loss / (self.means[i] @ bins.T + 0.02) for i, loss in enumerate(losses)]


AUDIO_WEIGHT = 0.2
DECIDED = 0.6  # the noise level under which a scene is decided


def small_counts(z, u):
    """Weights of the samples: small shapes fill few rows, yet are looked at like large ones.

    Only where the scene is decided; above, a weight that depends on it would make small shapes likelier.
    """
    stir = (z - z.mean(1, keepdim=True)).square().mean((1, 2))
    weight = (stir.mean() / (stir + 0.1 * stir.mean())).sqrt().clamp(max=2.0)
    return torch.where(u < DECIDED, weight / weight.mean(), torch.ones_like(weight))


class Guide:
    """A weaker model of the same sizes (an earlier checkpoint) that reads the prompt without its shape.

    Sampling along v + s (v - v_weak) undoes what both models get wrong in the same direction, the weak one more: smeared
    outlines, arms of a star that do not meet; and it goes from just any shape to the one that was asked for.  Training
    with that as the target makes it part of the model, so that one forward a step stays enough.  v is the trained model's
    own and grows with it, so a share s < 1 comes to a strength of 1 / (1 - s) in the end.
    """

    RANGE = 0.05, 0.95  # of u; at the ends there is nothing to sharpen, and sampling would lose variety

    def __init__(self, folder, share, device, dtype):
        self.share = share
        self.dit, self.text = nets.build_dit(), nets.build_text_encoder()
        self.dit.load_state_dict({k: v.float() for k, v in load_file(os.path.join(folder, "dit.safetensors")).items()})
        state = {k: v.float() for k, v in load_file(os.path.join(folder, "text_encoder.safetensors")).items()}
        self.text.load_state_dict({**state, "lm_head.weight": state["model.language_model.embed_tokens.weight"]})
        nets.cast_like_checkpoint(self.dit.to(device).eval(), dtype)
        self.text.to(device=device, dtype=dtype).eval()
        for module in (self.dit, self.text):
            module.requires_grad_(False)

    @torch.no_grad()
    def push(self, pv, u, *args):
        """What is added to the target of the video; `args` of `predict` after its models."""
        weak, _ = predict(self.dit, self.text, *args)
        share = self.share * ((u > self.RANGE[0]) & (u < self.RANGE[1])).float()
        return share[:, None, None] * (pv.detach().float() - weak.float())


def flow_loss(dit, text, codec, batch, shown, cores, near, levels=None, guide=None):
    images, rows = batch.get("images"), None
    if images is not None:
        rows = condition_rows(codec, images)
    z, a = nets.patchify(batch["z"]), nets.audio_rows(batch["a"])
    n, device = z.shape[0], z.device
    u = noise_levels(n, device, near)
    sv, sa = nets.shifted(u, nets.VIDEO_SHIFT), nets.shifted(u, nets.AUDIO_SHIFT)
    ev, ea = torch.randn_like(z), torch.randn_like(a)
    xv = (1 - sv)[:, None, None] * z + sv[:, None, None] * ev
    xa = (1 - sa)[:, None, None] * a + sa[:, None, None] * ea
    given = images, rows, xv, xa, 1 - sv, 1 - sa, cores
    pv, pa = predict(dit, text, shown, batch["ids"], *given)
    goal = z - ev if guide is None else z - ev + guide.push(pv, u, shown, batch["vague"], *given)
    lv = (pv.float() - goal).square().mean((1, 2))
    la = (pa.float() - (a - ea)).square().mean((1, 2))
    wv, wa = (lv, la) if levels is None else levels.divide(u, lv, la)
    return (wv * small_counts(z, u) + AUDIO_WEIGHT * wa).mean(), lv.mean(), la.mean()


@torch.no_grad()
def sample(dit, text, pool, task, ids, steps, conditioning, generator=None, anchors=(), images=None,
           cores=(nets.block_core, nets.refiner_core)):
    """The pipeline's Euler loop for a batch with one layout.

    `steps`: grid points, as `num_inference_steps` counts, or the base positions themselves (falling from 1 to 0).
    """
    device, n = ids.device, ids.shape[0]
    shown = conditioning.get(pool, task, ids.shape[1], anchors)
    rows = None if images is None else condition_rows(pool.codec, images)
    noise = lambda *shape: torch.randn(*shape, device=device, generator=generator)
    x = nets.patchify(noise(n, 24, pool.t, pool.h, pool.w))
    y = noise(n, 2 * pool.a, 32)
    base = torch.linspace(1.0, 0.0, steps) if isinstance(steps, int) else torch.tensor(steps)
    steps, base = len(base), base.to(device)
    sv, sa = nets.shifted(base, nets.VIDEO_SHIFT), nets.shifted(base, nets.AUDIO_SHIFT)
    for i in range(steps - 1):
        tv, ta = (1 - sv[i]).expand(n), (1 - sa[i]).expand(n)
        pv, pa = predict(dit, text, shown, ids, images, rows, x, y, tv, ta, cores)
        x = x + (sv[i] - sv[i + 1]) * pv.float()
        y = y + (sa[i] - sa[i + 1]) * pa.float()
    return (nets.unpatchify(x, pool.t, pool.h, pool.w),
            y.reshape(n, 2, pool.a, 32).permute(0, 1, 3, 2).contiguous())


def save_weights(dit, text, trainer, folder):
    """The averaged weights, as they are shipped."""
    trainer.load_average()
    state = {k: v.bfloat16().cpu().clone() for k, v in text.state_dict().items() if k != "lm_head.weight"}
    for name, part in (("dit", {k: v.cpu().clone() for k, v in dit.state_dict().items()}), ("text_encoder", state)):
        path = os.path.join(folder, f"{name}.safetensors")
        save_file(part, path + ".new")
        os.replace(path + ".new", path)
    trainer.load_masters()


def save_state(trainer, progress, path):
    """Two files, `PATH.masters.safetensors` and `PATH.moments.safetensors`."""
    state = trainer.state()
    masters = dict(masters=state.pop("masters"), steps=state.pop("steps"), progress=torch.tensor([progress]))
    for name, part in (("moments", state), ("masters", masters)):
        save_file(part, f"{path}.{name}.new")
        os.replace(f"{path}.{name}.new", f"{path}.{name}.safetensors")


def load_state(trainer, path):
    state = {}
    for name in ("moments", "masters"):
        state.update(load_file(f"{path}.{name}.safetensors"))
    trainer.restore(state)
    return float(state["progress"][0])


@torch.no_grad()
def start_from(folder, dit, text, trainer):
    """Trained weights into a fresh trainer, whose moments are then empty."""
    values = load_file(os.path.join(folder, "dit.safetensors"))
    for name, p in dit.named_parameters():
        p.copy_(values[name])
    values = load_file(os.path.join(folder, "text_encoder.safetensors"))
    for name, p in text.named_parameters():
        if name in values:
            p.copy_(values[name])
    where = 0
    for p in trainer.params:
        trainer.master[where : where + p.numel()] = p.detach().float().flatten()
        where += p.numel()
    trainer.average.copy_(trainer.master)


class Step:
    """One step of training: choose, draw, descend.

    A step is some thousands of small kernels, and starting them takes longer than running them.  With `graphs` a kind of
    step (geometry, task, prompt length) that came up twice is captured and replayed from then on.
    """

    def __init__(self, dit, text, trainer, pools, conditioning, cores, tokens, seed, rank, near=0.0, graphs=False,
                 guide=None):
        self.dit, self.text, self.trainer, self.pools = dit, text, trainer, pools
        self.conditioning, self.cores, self.tokens, self.near, self.guide = conditioning, cores, tokens, near, guide
        # What kind of step it is has to be the same on all ranks; what is in it must not be.
        self.shared, self.own = np.random.default_rng(seed), np.random.default_rng((seed, rank))
        self.graphs, self.memory = ({}, torch.cuda.graph_pool_handle()) if graphs else (None, None)
        self.levels = Levels(trainer.master.device)
        self.totals = {t: torch.zeros(4, device=trainer.master.device) for t in data.TASKS}

    def choose(self, progress):
        late = progress >= TURN
        # Shares are shares of time, so dear pools are drawn less often for their share; batches have equal rows.
        shares = np.array([p.weight[late] for p in self.pools])
        pool = self.pools[self.shared.choice(len(self.pools), p=shares / shares.sum())]
        task = data.TASKS[self.shared.choice(3, p=TASK_SHARES[progress >= CONDITIONS])]
        anchors = ANCHORS[self.shared.integers(0, 4)] if task == "fl2va" else ()
        return pool, task, anchors

    def draw(self, pool, task, anchors):
        batch = pool.draw(task, self.own, max(2, self.tokens // pool.tokens(task)))
        if task == "fl2va" and len(anchors) == 1:
            k = ("first", "last").index(anchors[0])
            batch["images"] = batch["images"][:, k : k + 1]
        return batch

    def descend(self, task, batch, shown):
        loss, lv, la = flow_loss(self.dit, self.text, self.pools[0].codec, batch, shown, self.cores, self.near,
                                 self.levels, self.guide)
        loss.backward()
        norm, note = self.trainer.apply()
        self.totals[task] += torch.stack((lv.detach(), la.detach(), torch.ones_like(lv).detach(), norm))
        return note

    def run(self, progress, lr_scale, note):
        pool, task, anchors = self.choose(progress)
        batch = self.draw(pool, task, anchors)
        shown = self.conditioning.get(pool, task, batch["ids"].shape[1], anchors)
        self.trainer.turn(lr_scale, note)
        if self.graphs is None:
            return self.descend(task, batch, shown)
        key = (pool.key, task, tuple(batch["ids"].shape), anchors)
        held = self.graphs.get(key, 0)
        if isinstance(held, int):
            self.graphs[key] = held + 1
            if held < 2:
                return self.descend(task, batch, shown)
            held = self.capture(task, batch, shown)
            self.graphs[key] = held
        graph, inputs, note = held
        for name, value in inputs.items():
            value.copy_(batch[name])
        graph.replay()
        return note

    def capture(self, task, batch, shown):
        inputs = {k: v.clone() for k, v in batch.items()}
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self.memory)
        try:
            note = self.descend(task, inputs, shown)
        finally:
            graph.capture_end()
        return graph, inputs, note


def compiled_cores():
    """The block compiled, the small refiner not (its compilation takes longer than it saves)."""
    return nets.compiled(nets.block_core, (0, (0, 1)), (1, (0,)), (2, (0,)), (3, (1,)), (4, (1,))), nets.refiner_core


def load_compiled(path):
    if path and os.path.exists(path) and os.path.getsize(path):
        try:
            with open(path, "rb") as f:
                torch.compiler.load_cache_artifacts(f.read())
        except Exception as error:  # of another version, say
            print("no compiled kernels:", type(error).__name__, str(error)[:200], flush=True)


def save_compiled(path):
    """Compiled kernels for the next run on such a device; once is enough."""
    if path and not os.path.exists(path):
        try:
            made = torch.compiler.save_cache_artifacts()
        except Exception as error:
            print("compiled kernels not kept:", type(error).__name__, str(error)[:200], flush=True)
            made = None
        with open(path, "wb") as f:
            f.write(made[0] if made else b"")


def build(device, dtype, args, reduce=None):
    dit, text = nets.build_dit(), freeze_unused(nets.build_text_encoder())
    start(dit, text)
    nets.cast_like_checkpoint(dit.to(device), dtype)
    text.to(device=device, dtype=dtype)
    muon = () if args.no_muon else optim.matrices(*dit.transformer_blocks, dit.token_refiner)
    trainer = optim.Trainer([dit, text], args.lr, ema=args.ema, muon=muon, reduce=reduce, adam_scale=args.adam_scale)
    return dit, text, trainer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--whole", action="store_true", help="--seconds includes reading and compiling")
    parser.add_argument("--weights", default="weights", help="folder of the code and the audio VAE")
    parser.add_argument("--out", default="weights")
    parser.add_argument("--state", default=None, help="path prefix for the training state")
    parser.add_argument("--init", default=None, help="folder of trained weights to start from, without a state")
    parser.add_argument("--resume", default=None, help="path prefix of a state to go on from")
    parser.add_argument("--since", type=float, default=None, help="where in the schedule this run starts (0 to 1)")
    parser.add_argument("--until", type=float, default=1.0, help="and where it ends")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--adam-scale", type=float, default=0.6, help="AdamW's rate over Muon's")
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--tokens", type=int, default=90_000, help="rows of packed sequence in a batch, per process")
    parser.add_argument("--peak", type=float, default=1.0, help="share of the rate that this run goes up to")
    parser.add_argument("--hold", type=float, default=0.45, help="where in the schedule the rate begins to fall")
    parser.add_argument("--others", type=float, default=1.0, help="factor on the shares of all but the two main geometries")
    parser.add_argument("--near", type=float, default=0.0, help="share of samples drawn nearer to the clean end")
    parser.add_argument("--guide", help="folder of a weaker checkpoint that the target is pushed away from")
    parser.add_argument("--guide-share", type=float, default=0.5, help="how far; see Guide")
    parser.add_argument("--stride", type=int, default=1, help="only every so manyth prompt length: fewer graphs to capture")
    parser.add_argument("--graphs", action="store_true", help="capture steps as CUDA graphs (one device)")
    parser.add_argument("--compiler-cache", help="file of compiled kernels, read if it is there, written else")
    parser.add_argument("--save-every", type=float, default=100, help="seconds between checkpoints")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-muon", action="store_true")
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the pools' sizes")
    parser.add_argument("--toy", action="store_true")
    args = parser.parse_args()

    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    workers = data.Workers(1 if args.toy else args.workers)  # before the device is touched
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    reduce = None
    if world_size > 1:
        torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")

        def reduce(flat):
            torch.distributed.all_reduce(flat)
            flat.div_(world_size)

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if device == "cuda":
        # cuDNN's attention builds a plan for every new shape; prompts of all lengths make many shapes.
        torch.backends.cuda.enable_cudnn_sdp(False)
    began = time.time()
    os.makedirs(args.out, exist_ok=True)
    codec = load_codec(args.weights, device, args.toy)
    dit, text, trainer = build(device, dtype, args, reduce)
    progress = 0.0
    if args.init:
        start_from(args.init, dit, text, trainer)
    if args.resume:
        progress = load_state(trainer, args.resume)
    progress = progress if args.since is None else args.since
    first = trainer.steps
    torch.manual_seed(args.seed + 1000 * rank + first)
    conditioning = Conditioning(dit, text, device)
    table = TOY_POOLS if args.toy else POOLS
    pools = [data.Pool(h, w, f, int(n * (1 if args.toy else args.scale)), codec, (early, late), workers,
                       args.seed * 100 + rank + 10 * first, chunk=16 if args.toy else 64 if f < 80 else 32,
                       stride=args.stride)
             for h, w, f, n, early, late in table if args.toy or args.others or (h, w, f) in MAIN]
    for pool in pools:
        if pool.key not in MAIN:
            pool.weight = tuple(share * args.others for share in pool.weight)
    for pool in pools:
        for _ in range(1 if args.toy else 6):
            pool.grow()
    if device == "cuda":
        torch.cuda.synchronize()
    print(f"rank {rank} of {world_size}: ready after {time.time() - began:.1f} s, {len(trainer.params)} tensors", flush=True)
    cores = (nets.block_core, nets.refiner_core)
    if not args.no_compile and not args.toy:
        load_compiled(args.compiler_cache)
        cores = compiled_cores()
    graphs = args.graphs and device == "cuda" and world_size == 1
    if graphs:
        # A capture wants a stream of its own, and everything before it on the same one.
        torch.cuda.synchronize()
        torch.cuda.set_stream(torch.cuda.Stream())
    step = Step(dit, text, trainer, pools, conditioning, cores, args.tokens if not args.toy else 2000,
                args.seed + first, rank, args.near, graphs,
                Guide(args.guide, args.guide_share, device, dtype) if args.guide else None)
    if step.cores[0] is not nets.block_core:
        try:
            for pool in pools[:2]:
                batch = step.draw(pool, "t2va", ())
                shown = conditioning.get(pool, "t2va", batch["ids"].shape[1], ())
                flow_loss(dit, text, codec, batch, shown, step.cores, 0.0, None, step.guide)[0].backward()
                print(f"compiled after {time.time() - began:.1f} s", flush=True)
        except Exception as error:  # a compiler that is missing or fails costs speed, not the run
            print("no compilation:", type(error).__name__, str(error)[:500], flush=True)
            step.cores = (nets.block_core, nets.refiner_core)
        for p in trainer.params:
            p.grad = None
        if device == "cuda":
            torch.cuda.synchronize()
    spent = time.time() - began if args.whole else 0.0
    clock = optim.Clock(args.seconds - spent, progress, args.until, warmup=150, hold=args.hold)
    mark, marks, saved = time.time(), 0, time.time()
    every = 5 if args.toy else 250
    log, events = [], []
    while True:
        note = step.run(progress, args.peak * clock.scale(trainer.steps - first, progress), clock.progress())
        marks += 1
        if device == "cuda":
            # The host stays a few steps ahead, not more.
            events.append(torch.cuda.Event())
            events[-1].record()
            if len(events) > 4:
                events.pop(0).synchronize()
        if trainer.steps % 16 == 0:
            progress = float(note)  # one number for all ranks
            if progress >= args.until - 1e-4:
                break
            # Fresh clips cost time; once there are many, fewer will do.
            growing = [p for p in pools if not p.full()]
            if growing and (trainer.steps % 32 == 0 or sum(p.n for p in pools) < 12000):
                # The pool that is emptiest for its size.
                min(growing, key=lambda p: p.n / p.capacity).grow()
        if trainer.steps % every == 0 and rank == 0:
            row = dict(step=trainer.steps, seconds=round(clock.elapsed, 1), progress=round(progress, 4),
                       ms=round((time.time() - mark) / marks * 1e3, 1), clips=sum(p.n for p in pools))
            if step.graphs:
                row["graphs"] = sum(not isinstance(g, int) for g in step.graphs.values())
            for name, total in step.totals.items():
                v, a, k, norm = total.tolist()
                if k:
                    row[name] = (round(v / k, 4), round(a / k, 4), round(norm / k, 2))
                total.zero_()
            log.append(row)
            print(json.dumps(row), flush=True)
            mark, marks = time.time(), 0
            if time.time() - saved > args.save_every:
                save_weights(dit, text, trainer, args.out)
                if args.state:
                    save_state(trainer, progress, args.state)
                save_compiled(args.compiler_cache)
                saved = time.time()
    if rank == 0:
        save_weights(dit, text, trainer, args.out)
        if args.state:
            save_state(trainer, progress, args.state)
        with open(os.path.join(args.out, "dit_log.json"), "a") as f:
            f.write(json.dumps(dict(args=vars(args), world=world_size, log=log)) + "\n")
        print(f"{trainer.steps} steps, {clock.elapsed:.1f} s", flush=True)
    workers.stop()
    if world_size > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
