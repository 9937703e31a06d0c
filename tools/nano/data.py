"""Clips for DiT training: scenes are rendered and coded by the linear video code and the audio VAE, and kept as latents.

One pool holds the clips of one geometry and serves all tasks: text alone, first/last frames, an image reference.
Scenes and prompts come from worker processes; rendering and coding run on the training device.
"""

import multiprocessing
import random
import re

import numpy as np
import torch

import nets
import prompts
import world

VISION_START, VISION_END, IMAGE_PAD = 1007, 1008, 1010
TASKS = ("t2va", "fl2va", "ref2va")


class Head:
    """What a presentation puts before the prompt: `<Picture i>: ` and a vision block for every image."""

    def __init__(self, ids, tags, grids):
        self.ids, self.tags, self.grids = ids, tags, grids


_TOKENIZER = None


def encode_text(texts):
    global _TOKENIZER
    if _TOKENIZER is None:
        _TOKENIZER = nets.load_tokenizer()
    return [e.ids for e in _TOKENIZER.encode_batch(texts, add_special_tokens=False)]


SHAPE_WORD = re.compile(r"\b(%s)\b" % "|".join(sorted({w for ws in prompts.SHAPE_WORDS.values() for w in ws}, key=len)[::-1]))


def encode_vague(texts):
    """`encode_text` with the word "shape" for every token of the words that name one."""
    out = encode_text(texts)
    (vague,) = encode_text([" shape"])[0]
    for ids, text, encoding in zip(out, texts, _TOKENIZER.encode_batch(texts, add_special_tokens=False)):
        for found in SHAPE_WORD.finditer(text):
            for i, (start, end) in enumerate(encoding.offsets):
                if end > found.start() and start < found.end():
                    ids[i] = vague
    return out


def presentation(images, height, width):
    ids, tags, grids = [], [], []
    tokens = (height // 32) * (width // 32)
    for i in range(images):
        label = encode_text([f"<Picture {i + 1}>: "])[0]
        block = [VISION_START] + [IMAGE_PAD] * tokens + [VISION_END]
        ids += label + block
        tags += [nets.TEXT_TAG] * len(label) + [nets.VIDEO_TAG] * len(block)
        grids.append((height // 32, width // 32))
    return Head(ids, tags, grids)


def rotary_positions(head, prompt_length):
    """Qwen3-VL's `(3, l)` rotary positions: text counts on, an image spans its merged grid."""
    t, h, w = [], [], []
    cursor, image, i = 0, 0, 0
    ids = list(head.ids) + [0] * prompt_length
    while i < len(ids):
        if ids[i] == IMAGE_PAD:
            gh, gw = head.grids[image]
            for y in range(gh):
                for x in range(gw):
                    t.append(cursor)
                    h.append(cursor + y)
                    w.append(cursor + x)
            i += gh * gw
            cursor += max(gh, gw)
            image += 1
        else:
            for axis in (t, h, w):
                axis.append(cursor)
            cursor += 1
            i += 1
    return torch.tensor([t, h, w])


class Codec:
    """Pixels and sound to normalized latents: the linear code for video, the audio VAE for sound."""

    def __init__(self, code, video_stats, audio_vae, audio_stats, device):
        self.device, self.code, self.audio = device, code, audio_vae.to(device).eval().requires_grad_(False)
        as_t = lambda v, shape: torch.tensor(v, device=device, dtype=torch.float32).view(shape)
        self.v_mean, self.v_std = (as_t(video_stats[k], (1, -1, 1, 1, 1)) for k in ("latents_mean", "latents_std"))
        self.a_mean, self.a_std = (as_t(audio_stats[k], (1, 1, -1, 1)) for k in ("latents_mean", "latents_std"))

    @torch.no_grad()
    def encode_video(self, video):
        """Normalized latents of pixels in [0, 1]."""
        return (self.code.clip(world.normalize(video)) - self.v_mean) / self.v_std

    @torch.no_grad()
    def encode_audio(self, wave):
        """Normalized latents of `(n, 2, samples)`."""
        pieces = [nets.encode_audio(self.audio, part) for part in wave.split(64)]
        return (torch.cat(pieces) - self.a_mean) / self.a_std


def quantize(video):
    return (video * 255).round().to(torch.uint8)


def reference_images(s, rng, device):
    """Pictures of the (first) shape alone in the middle, on a background of their own."""
    edge = nets.REFERENCE_EDGE
    r = world.Scenes(s.n)
    for name in world.Scenes.FIELDS:
        setattr(r, name, np.array(getattr(s, name), copy=True))
    r.aspect = (edge, edge)
    r.two[:] = False
    r.motion[:] = world.MOTIONS.index("still")
    for name in ("x0", "x1", "y0", "y1"):
        setattr(r, name, np.full((s.n, 2), 0.5) + (rng.random((s.n, 1)) - 0.5) * 0.1)
    r.r0 = r.r1 = np.repeat(0.2 + 0.1 * rng.random((s.n, 1)), 2, 1)
    background = rng.integers(0, len(world.BACKGROUNDS), s.n)
    r.bg_rgb = world.BACKGROUND_RGB[background]
    r.gradient[:] = 0
    return quantize(world.render(r, 5, device, only_frames=[0]))[:, :, 0]


# -------------------------------------------------------------------------------------- scenes and prompts, by workers


def writer_for(seed):
    return prompts.Writer(random.Random(seed))


TIDY = 0.8  # share of the clips


def write_chunk(seed, index, height, width, frames, count, paraphrases):
    """Scenes of a chunk and, per task, rows `(clip, token ids, the same without the shape)`.

    A keyframe may show anything, so that task sees all clips, the others the tidy ones.
    """
    rng, writer = np.random.default_rng((seed, index)), writer_for(seed * 1_000_003 + index)
    s = world.sample_scenes(rng, count, height, width, frames, p_two=0.1, tidy=TIDY)
    rows = {}
    for task, write, share in (("t2va", writer.any_prompt, 1.0), ("fl2va", writer.keyframe_prompt, 0.4),
                               ("ref2va", writer.reference_prompt, 0.6)):
        clips = [i for i in range(count) if task == "fl2va" or s.tidy[i] and not (task == "ref2va" and s.two[i])]
        clips = clips[: int(len(clips) * share)] if task != "t2va" else clips
        # Every scene is written several times in other words.
        again = [i for i in clips for _ in range(paraphrases if task == "t2va" else max(1, paraphrases // 2))]
        texts = [write(s, i) for i in again]
        rows[task] = list(zip(again, encode_text(texts), encode_vague(texts)))
    return s, rows


def _work(jobs, results):
    torch.set_num_threads(1)
    while True:
        job = jobs.get()
        if job is None:
            return
        results.put((job[0], write_chunk(*job[1])))


class Workers:
    """Processes that write chunks ahead; start them before the device is touched."""

    def __init__(self, count):
        context = multiprocessing.get_context("fork")
        self.jobs, self.results = context.Queue(), context.Queue()
        self.processes = [context.Process(target=_work, args=(self.jobs, self.results), daemon=True)
                          for _ in range(count)]
        for p in self.processes:
            p.start()
        self.waiting = {}

    def ask(self, key, *job):
        self.jobs.put((key, job))

    def get(self, key):
        """The oldest finished chunk of a pool; waits for it."""
        while not self.waiting.get(key):
            done, chunk = self.results.get()
            self.waiting.setdefault(done, []).append(chunk)
        return self.waiting[key].pop(0)

    def stop(self):
        for p in self.processes:
            p.terminate()


# ----------------------------------------------------------------------------------------------------------------- pool


class Pool:
    def __init__(self, height, width, frames, capacity, codec, weight, workers, seed, chunk=64, paraphrases=4,
                 stride=1):
        self.height, self.width, self.frames, self.weight = height, width, frames, weight
        self.codec, self.workers, self.seed, self.paraphrases = codec, workers, seed, paraphrases
        self.chunk = min(chunk, capacity)
        self.capacity = capacity // self.chunk * self.chunk
        self.t, self.a = world.video_latents(frames), world.audio_latents(frames)
        self.h, self.w = height // 16, width // 16
        self.n, self.asked, self.stride = 0, 0, stride
        self.key = (height, width, frames)
        self.store = {}
        self.lengths = {task: {} for task in TASKS}  # task -> token count -> ([clip], [ids], [vague ids])
        for _ in range(3):
            self._ask()

    def _ask(self):
        if self.asked < self.capacity:
            self.workers.ask(self.key, self.seed, self.asked, self.height, self.width, self.frames, self.chunk,
                             self.paraphrases)
            self.asked += self.chunk

    def tokens(self, task):
        """About how many rows a packed sample has."""
        rows = self.t * self.h * self.w // 4 + 2 * self.a + 20
        return rows + {"t2va": 0, "fl2va": 3 * self.h * self.w // 4, "ref2va": 36}[task]

    def full(self):
        return self.n >= self.capacity

    @torch.no_grad()
    def grow(self):
        """One more chunk of clips."""
        if self.full():
            return
        s, rows = self.workers.get(self.key)
        self._ask()
        device = self.codec.device
        rng = np.random.default_rng((self.seed, self.n, 7))
        step = max(1, int(2.4e8 // (self.height * self.width * self.frames)))
        parts = []
        for start in range(0, s.n, step):
            sub = s.take(np.arange(start, min(s.n, start + step)))
            video = world.render(sub, self.frames, device)
            entry = dict(z=self.codec.encode_video(video).bfloat16(), ends=quantize(video[:, :, [0, -1]].transpose(1, 2)))
            parts.append(entry)
        entry = {k: torch.cat([p[k] for p in parts]) for k in parts[0]}
        entry["a"] = self.codec.encode_audio(world.synth(s, self.frames, device)).bfloat16()
        entry["reference"] = reference_images(s, rng, device)[:, None]
        for name, value in entry.items():
            if name not in self.store:
                self.store[name] = torch.empty((self.capacity, *value.shape[1:]), dtype=value.dtype, device=device)
            self.store[name][self.n : self.n + s.n] = value
        for task in TASKS:
            for clip, ids, vague in rows[task]:
                for column, value in zip(self.lengths[task].setdefault(len(ids), ([], [], [])), (self.n + clip, ids, vague)):
                    column.append(value)
        self.n += s.n

    def draw(self, task, rng, batch):
        """A training batch: one prompt length, hence one packed layout."""
        table = self.lengths[task]
        lengths = [k for k in table if (k + self.seed // 100) % self.stride == 0] or list(table)
        counts = np.array([len(table[k][0]) for k in lengths], dtype=np.float64)
        # Rare lengths would repeat the same few clips.
        counts = np.where(counts >= min(max(8, batch // 6), counts.max()), counts, 0)
        clips, texts, vague = table[lengths[rng.choice(len(lengths), p=counts / counts.sum())]]
        pick = rng.integers(0, len(clips), batch)
        device = self.codec.device
        move = lambda v: torch.as_tensor(np.array(v)).to(device, non_blocking=True)
        index = move([clips[i] for i in pick])
        out = dict(ids=move([texts[i] for i in pick]), vague=move([vague[i] for i in pick]), z=self.store["z"][index].float(),
                   a=self.store["a"][index].float())
        if task == "fl2va":
            out["images"] = self.store["ends"][index].float() / 255
        if task == "ref2va":
            out["images"] = self.store["reference"][index].float() / 255
        return out
