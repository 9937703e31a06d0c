"""The linear code that h3-nano's video latents are: 24 numbers for 16x16 pixels of four frames.

Fifteen numbers are the leading principal components of a patch's mean over its four frames, nine those of what its
first three frames differ by.  A chunk's first frame, which is a latent frame of its own, is coded as if it stood still
for four frames: then a number means the same in both kinds of latent frame, and the nine are zero.  (That the nine leave
out the fourth frame is for the encoder's sake, where a lone frame comes in at the fourth place of zeros.)  Patches with
structure count more than flat ones when the components are found.

Encoder, decoder and DiT are trained on this code independently, so none waits for another.
"""

import os

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import world

N_STATIC, N_MOTION = 15, 9
# Normalized latents have this deviation: twice the usual one halves the shift of 12 in effect, which is made for far
# longer sequences than 256x256 has, and leaves less to the last jump of a short schedule.
SPREAD = 2.0


class Code:
    """`basis` `(4, 3, 16, 16, 24)`, `shift` `(24,)`: the raw latent is patch x basis - shift (mean 0, deviation 1)."""

    def __init__(self, basis, shift, device="cpu"):
        self.basis, self.shift = basis.to(device), shift.to(device)

    def frames4(self, x):
        """`(n, 3, 4 k, h, w)` normalized pixels -> `(n, 24, k, h/16, w/16)`."""
        n, c, t, h, w = x.shape
        x = x.reshape(n, c, t // 4, 4, h // 16, 16, w // 16, 16).permute(0, 2, 4, 6, 3, 1, 5, 7)
        z = x.reshape(n, t // 4, h // 16, w // 16, -1) @ self.basis.to(x.dtype).flatten(0, 3)
        return z.permute(0, 4, 1, 2, 3) - self.shift.to(x.dtype).view(1, -1, 1, 1, 1)

    def frame1(self, x):
        """`(n, 3, k, h, w)` single frames -> `(n, 24, k, h/16, w/16)`."""
        n, c, t, h, w = x.shape
        x = x.reshape(n, c, t, h // 16, 16, w // 16, 16).permute(0, 2, 3, 5, 1, 4, 6)
        z = x.reshape(n, t, h // 16, w // 16, -1) @ self.basis.sum(0).to(x.dtype).flatten(0, 2)
        return z.permute(0, 4, 1, 2, 3) - self.shift.to(x.dtype).view(1, -1, 1, 1, 1)

    def clip(self, x):
        """A clip of 17 n + 5 frames (or one frame) -> its 5 n + 2 (1) latent frames."""
        frames = x.shape[2]
        if frames == 1:
            return self.frame1(x)
        firsts = self.frame1(x[:, :, ::17])
        out = []
        for i, start in enumerate(range(0, frames, 17)):
            rest = x[:, :, start + 1 : min(start + 17, frames)]
            out += [firsts[:, :, i : i + 1], self.frames4(rest)]
        return torch.cat(out, dim=2)

    def save(self, path):
        save_file({"basis": self.basis.cpu().contiguous(), "shift": self.shift.cpu().contiguous()}, path)


def load(path, device="cpu"):
    state = load_file(path)
    return Code(state["basis"], state["shift"], device)


def patches(rng, clips, size, device, free_colours=0.25):
    """Normalized 4-frame patches `(n, 4, 3, 16, 16)` of frames 1..20."""
    s = world.sample_scenes(rng, clips, size, size, 22, free_colours=free_colours)
    out = []
    for i in range(0, clips, 8):
        x = world.normalize(world.render(s.take(np.arange(i, min(clips, i + 8))), 22, device, only_frames=range(1, 21)))
        n, c, t, h, w = x.shape
        x = x.reshape(n, c, 5, 4, h // 16, 16, w // 16, 16).permute(0, 2, 4, 6, 3, 1, 5, 7)
        out.append(x.reshape(-1, 4, c, 16, 16))
    return torch.cat(out)


@torch.no_grad()
def fit(seed=12, clips=96, size=256, device="cpu"):
    x = patches(np.random.default_rng(seed), clips, size, device)
    weight = torch.where(x.flatten(3).std(3).mean((1, 2)) > 0.05, 1.0, 0.25)

    def leading(rows, count):
        rows = rows * weight.sqrt()[:, None]
        vectors = torch.linalg.eigh((rows.T @ rows).double().cpu())[1].flip(1)[:, :count]
        # A sign that does not depend on the solver.
        vectors = vectors * torch.where(vectors.sum(0) < 0, -1.0, 1.0)
        return vectors.float().to(device)

    mean = x.mean(1)
    centre = (mean * weight.view(-1, 1, 1, 1)).sum(0) / weight.sum()
    static = leading((mean - centre).flatten(1), N_STATIC)
    three = x[:, :3]
    motion = leading((three - three.mean(1, keepdim=True)).flatten(1), N_MOTION).view(3, 3, 16, 16, -1)
    motion = torch.cat((motion, torch.zeros_like(motion[:1])))
    basis = torch.cat((static.view(1, 3, 16, 16, -1).expand(4, -1, -1, -1, -1) / 4, motion), dim=4)
    z = x.flatten(1) @ basis.flatten(0, 3)
    basis = basis / z.std(0)
    return Code(basis, z.mean(0) / z.std(0), device)


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="weights")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(0)
    code = fit()
    code.save(os.path.join(args.out, "code.safetensors"))
    x = patches(np.random.default_rng(6), 16, 256, "cpu", 0.0)
    z = x.flatten(1) @ code.basis.flatten(0, 3)
    back = torch.linalg.lstsq(torch.cat((z, torch.ones_like(z[:, :1])), 1), x.flatten(1)).solution
    error = (torch.cat((z, torch.ones_like(z[:, :1])), 1) @ back - x.flatten(1)).view_as(x)
    error = (error * torch.tensor(world.PIXEL_STD).view(1, 1, 3, 1, 1)).square().flatten(1).mean(1)
    busy = x.flatten(1).std(1) > 0.2
    print("PSNR of the linear code:", round(-10 * np.log10(error.mean().item()), 2),
          "patches with structure", round(-10 * np.log10(error[busy].mean().item()), 2))
