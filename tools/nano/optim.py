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
    x = g.bfloat16() if g.is_cuda else g
    turned = x.shape[1] > x.shape[2]
    if turned:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.transpose(1, 2) if turned else x


class Trainer:
    """Everything lies in flat vectors, so that a step is some dozens of kernels however many parameters there are.

    `muon`: ids of the parameters that Muon updates (`matrices`); the rest goes to AdamW at `adam_scale` of the rate.
    Muon's update is scaled by 0.2 sqrt(longer side), which makes its entries as large as AdamW's.  Parameters become
    views of one vector per dtype.  With `reduce` (a function of a flat tensor) gradients are averaged over processes.
    """

    def __init__(self, modules, lr, betas=(0.9, 0.99), weight_decay=0.01, ema=0.999, clip=1.0, muon=(), reduce=None,
                 momentum=0.95, adam_scale=1.0):
        params = [p for m in modules for p in m.parameters() if p.requires_grad]
        # Halves first; one vector of parameters per dtype, one of everything else for both.
        self.params = [p for p in params if p.dtype != torch.float32] + [p for p in params if p.dtype == torch.float32]
        device = self.params[0].device
        sizes = [p.numel() for p in self.params]
        offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        self.total, self.n_half = sum(sizes), sum(p.numel() for p in params if p.dtype != torch.float32)
        self.n_half_params = sum(p.dtype != torch.float32 for p in params)
        assert all(size % 8 == 0 for size in sizes), "a parameter would be badly aligned"
        flat = lambda value=0.0: torch.full((self.total,), value, device=device)
        self.master = torch.cat([p.detach().float().flatten() for p in self.params])
        self.average = self.master.clone()
        self.first, self.second, self.update, self.rate, self.wane = flat(), flat(), flat(), flat(adam_scale), flat()
        self.half = torch.empty(self.n_half, device=device, dtype=self.params[0].dtype) if self.n_half else None
        self.full = torch.empty(self.total - self.n_half, device=device)
        self.zeros = [torch.zeros(size, device=device, dtype=p.dtype) for size, p in zip(sizes, self.params)]
        view = lambda vector, i: vector[offsets[i] : offsets[i] + sizes[i]].view(self.params[i].shape)
        stacks = {}
        for i, p in enumerate(self.params):
            if p.dim() >= 2:
                view(self.wane, i).fill_(weight_decay)
            if id(p) in muon:
                stacks.setdefault(tuple(p.shape), []).append(i)
                view(self.rate, i).zero_()
            if i < self.n_half_params:
                p.data = view(self.half, i)
            else:
                p.data = self.full[offsets[i] - self.n_half :][: sizes[i]].view(p.shape)
        self.stacks = [dict(grad=[view(self.first, i) for i in ids], update=[view(self.update, i) for i in ids],
                            scale=0.2 * max(shape) ** 0.5) for shape, ids in stacks.items()]
        self.lr, self.ema, self.clip, self.betas, self.momentum, self.reduce = lr, ema, clip, betas, momentum, reduce
        # Muon's velocity is the same running mean as AdamW's first moment, with its own factor.
        self.keep = torch.where(self.rate > 0, betas[0], momentum)
        self.steps = 0
        # What changes from step to step: the rate, AdamW's two corrections, the average's step, the note.
        self.knobs = torch.zeros(5, device=device)
        self.load_masters()

    def turn(self, lr_scale, note=0.0):
        """Counts a step and puts its numbers where `apply` reads them."""
        self.steps += 1
        b1, b2 = self.betas
        decay = min(self.ema, (1 + self.steps) / (10 + self.steps))
        knobs = torch.tensor((self.lr * lr_scale, 1 / (1 - b1**self.steps), 1 / (1 - b2**self.steps), 1 - decay, note))
        self.knobs.copy_(knobs.pin_memory() if self.knobs.is_cuda else knobs, non_blocking=True)

    def step(self, lr_scale, note=0.0):
        """One update from the gradients of the model; a parameter without a gradient counts as having a zero one.

        `note`: a number to be averaged over the processes beside the gradients; it comes back.
        """
        self.turn(lr_scale, note)
        return self.apply()

    @torch.no_grad()
    def apply(self):
        """The update with the numbers of `turn`: kernels only, so that a CUDA graph can hold it."""
        lr, fix_first, fix_second, toward, note = self.knobs.unbind()
        grads = [z if p.grad is None else p.grad.reshape(-1) for p, z in zip(self.params, self.zeros)]
        parts = [torch.cat(part).float() for part in (grads[: self.n_half_params], grads[self.n_half_params :]) if part]
        for p in self.params:
            p.grad = None
        if self.reduce is None:
            g = torch.cat(parts)
        else:
            g = torch.cat(parts + [note[None]])
            self.reduce(g)
            note, g = g[-1].clone(), g[:-1]
        norm = g.norm()
        # A step that is not finite becomes one without a gradient.
        factor = torch.where(torch.isfinite(norm), (self.clip / (norm + 1e-6)).clamp(max=1.0), torch.zeros_like(norm))
        g = torch.nan_to_num(g, 0.0, 0.0, 0.0).mul_(factor)
        b2 = self.betas[1]
        self.first.mul_(self.keep).add_(g).addcmul_(g, self.keep, value=-1)
        self.second.mul_(b2).addcmul_(g, g, value=1 - b2)
        spread = self.second.mul(fix_second).sqrt_().add_(1e-8)
        torch.div(self.first, spread, out=self.update).mul_(self.rate).mul_(lr * fix_first)
        if self.stacks:
            # Nesterov: a step ahead along the fresh gradient.
            ahead = torch.lerp(g, self.first, self.momentum)
            offset = lambda v: v.storage_offset()
            for stack in self.stacks:
                rows = torch.stack([ahead[offset(v) : offset(v) + v.numel()].view(v.shape) for v in stack["grad"]])
                turned = orthogonalize(rows).float() * (lr * stack["scale"])
                torch._foreach_copy_(stack["update"], list(turned.unbind(0)))
        self.update.addcmul_(self.master * lr, self.wane)
        self.master.sub_(self.update)
        self.average.add_((self.master - self.average) * toward)
        self.load_masters()
        return norm, note

    @torch.no_grad()
    def _load(self, vector):
        if self.half is not None:
            self.half.copy_(vector[: self.n_half])
        self.full.copy_(vector[self.n_half :])

    def load_average(self):
        """Put the averaged weights into the model (the masters stay)."""
        self._load(self.average)

    def load_masters(self):
        self._load(self.master)

    def average_of(self):
        """The averaged value of every parameter, by its id."""
        pieces = self.average.split([p.numel() for p in self.params])
        return {id(p): v.view(p.shape) for p, v in zip(self.params, pieces)}

    def state(self):
        """What a later run goes on from."""
        half = lambda v: v.bfloat16().cpu()
        return dict(masters=self.master.cpu(), average=half(self.average), first=half(self.first),
                    second=half(self.second), steps=torch.tensor([self.steps]))

    @torch.no_grad()
    def restore(self, state):
        for name, vector in (("masters", self.master), ("average", self.average), ("first", self.first),
                             ("second", self.second)):
            vector.copy_(state[name])
        self.steps = int(state["steps"][0])
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
