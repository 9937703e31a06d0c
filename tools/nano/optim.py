"""AdamW and Muon on float32 masters of a (partly) bf16 model, an exponential moving average, a clock-driven schedule."""

import math
import time

import torch


def matrices(*modules):
    """The hidden matrices of some modules, for Muon: both sides wide enough to have a spectrum worth flattening."""
    return {id(p) for m in modules for p in m.parameters() if p.dim() == 2 and min(p.shape) >= 24}


@torch.no_grad()
def orthogonalize(g, steps=5):
    """Newton-Schulz iteration towards the nearest (semi-)orthogonal matrices of a stack `(k, rows, columns)`."""
    x = g.bfloat16() if g.is_cuda else g.float()
    turned = x.shape[1] > x.shape[2]
    if turned:
        x = x.transpose(1, 2)
    x = x / (x.float().flatten(1).norm(dim=1).view(-1, 1, 1) + 1e-7).to(x.dtype)
    for _ in range(steps):
        a = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.transpose(1, 2) if turned else x).float()


class Trainer:
    """`muon`: ids of the parameters that Muon updates (`matrices`); the rest goes to AdamW.

    Muon's update is scaled by 0.2 sqrt(longer side), which makes its entries as large as AdamW's, so that both share
    one learning rate.  With `reduce` (a function of a flat tensor) gradients are averaged over processes first.
    """

    def __init__(self, modules, lr, betas=(0.9, 0.99), weight_decay=0.01, ema=0.999, clip=1.0, muon=(), reduce=None,
                 momentum=0.95):
        self.params = [p for m in modules for p in m.parameters() if p.requires_grad]
        self.masters = [p.detach().float().clone() for p in self.params]
        self.average = [m.clone() for m in self.masters]
        self.lr, self.ema, self.clip, self.decay, self.momentum = lr, ema, clip, weight_decay, momentum
        self.reduce = reduce
        groups = {}
        for i, p in enumerate(self.params):
            if id(p) in muon:
                groups.setdefault(tuple(p.shape), []).append(i)
        self.stacks = list(groups.values())
        in_muon = {i for stack in self.stacks for i in stack}
        self.velocity = {i: torch.zeros_like(self.masters[i]) for i in sorted(in_muon)}
        rest = [m for i, m in enumerate(self.masters) if i not in in_muon]
        adam = [dict(params=[m for m in rest if m.dim() >= 2], weight_decay=weight_decay),
                dict(params=[m for m in rest if m.dim() < 2], weight_decay=0.0)]
        adam = [g for g in adam if g["params"]]
        self.fused = self.masters[0].is_cuda
        self.optimizer = torch.optim.AdamW(adam, lr=lr, betas=betas, eps=1e-8, fused=self.fused)
        sizes = [m.numel() for m in self.masters]
        self.flat = torch.zeros(sum(sizes) + 1, device=self.masters[0].device)
        self.grads = [v.view(m.shape) for v, m in zip(self.flat[:-1].split(sizes), self.masters)]
        self.steps = 0

    @torch.no_grad()
    def step(self, lr_scale, note=0.0):
        """One update from the gradients of the model; a parameter without a gradient counts as having a zero one.

        `note`: a number to be averaged over the processes beside the gradients; it comes back as a tensor.
        """
        self.flat.zero_()
        used = [i for i, p in enumerate(self.params) if p.grad is not None]
        torch._foreach_copy_([self.grads[i] for i in used], [self.params[i].grad for i in used])
        for i in used:
            self.params[i].grad = None
        if self.reduce is not None:
            self.flat[-1] = note
            self.reduce(self.flat)
            note = self.flat[-1].clone()
            self.flat[-1] = 0
        norm = self.flat.norm()
        # A step that is not finite becomes one without a gradient.
        factor = torch.where(torch.isfinite(norm), (self.clip / (norm + 1e-6)).clamp(max=1.0), torch.zeros_like(norm))
        torch.nan_to_num_(self.flat, 0.0, 0.0, 0.0)
        self.flat.mul_(factor)
        lr = self.lr * lr_scale
        for i, m in enumerate(self.masters):
            m.grad = None if i in self.velocity else self.grads[i]
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        for stack in self.stacks:
            velocity, grads = [self.velocity[i] for i in stack], [self.grads[i] for i in stack]
            torch._foreach_lerp_(velocity, grads, 1 - self.momentum)
            update = torch._foreach_lerp(grads, velocity, self.momentum)
            update = orthogonalize(torch.stack(update))
            masters = [self.masters[i] for i in stack]
            torch._foreach_mul_(masters, 1 - lr * self.decay)
            torch._foreach_add_(masters, list(update.unbind(0)), alpha=-lr * 0.2 * max(update.shape[1:]) ** 0.5)
        self.steps += 1
        decay = min(self.ema, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self.average, self.masters, 1 - decay)
        torch._foreach_copy_(self.params, self.masters)
        return norm, note

    @torch.no_grad()
    def load_average(self):
        """Put the averaged weights into the model (the masters stay)."""
        torch._foreach_copy_(self.params, self.average)

    @torch.no_grad()
    def load_masters(self):
        torch._foreach_copy_(self.params, self.masters)

    def state(self):
        """What a later run goes on from, as flat tensors: masters, average, Muon's velocity, AdamW's second moment."""
        flat = lambda tensors, dtype: torch.cat([t.detach().to(dtype).flatten().cpu() for t in tensors])
        second = [self.optimizer.state.get(m, {}).get("exp_avg_sq", torch.zeros_like(m)) for m in self.masters]
        return dict(masters=flat(self.masters, torch.float32), average=flat(self.average, torch.bfloat16),
                    velocity=flat([self.velocity.get(i, torch.zeros(0, device=m.device))
                                   for i, m in enumerate(self.masters)], torch.bfloat16),
                    second=flat([s for i, s in enumerate(second) if i not in self.velocity], torch.bfloat16),
                    steps=torch.tensor([self.steps]))

    @torch.no_grad()
    def restore(self, state):
        def pieces(name, tensors):
            return zip(tensors, state[name].float().split([t.numel() for t in tensors]))

        for m, v in pieces("masters", self.masters):
            m.copy_(v.view_as(m))
        for m, v in pieces("average", self.average):
            m.copy_(v.view_as(m))
        for m, v in pieces("velocity", list(self.velocity.values())):
            m.copy_(v.view_as(m))
        self.steps = int(state["steps"][0])
        for m, v in pieces("second", [m for i, m in enumerate(self.masters) if i not in self.velocity]):
            self.optimizer.state[m] = dict(step=torch.tensor(float(self.steps), device=m.device),
                                           exp_avg=torch.zeros_like(m), exp_avg_sq=v.view_as(m).to(m.device))
        self.load_masters()


class Clock:
    """Progress in [0, 1] over a time budget, and the learning-rate scale: warm-up, constant, then a decay to zero."""

    def __init__(self, seconds, start=0.0, end=1.0, warmup=100, hold=0.55):
        self.seconds, self.start, self.end, self.warmup, self.hold = seconds, start, end, warmup, hold
        self.began = time.time()

    @property
    def elapsed(self):
        return time.time() - self.began

    def done(self):
        return self.elapsed >= self.seconds

    def progress(self):
        return self.start + (self.end - self.start) * min(1.0, self.elapsed / self.seconds)

    def scale(self, steps, progress=None):
        p = self.progress() if progress is None else progress
        warm = min(1.0, (steps + 1) / self.warmup)
        if p <= self.hold:
            return warm
        return warm * max(0.01, 0.5 * (1 + math.cos(math.pi * (p - self.hold) / (1 - self.hold))))
