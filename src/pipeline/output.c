/** Outputs of a run; see output.h. */
#include "output.h"

#include <string.h>
#include <strings.h>

#include "file.h"

/* x264's pictures depend on its number of threads: one rule by size, whatever the machine, keeps
 * equal requests equal files, and its memory (13 bytes a pixel and thread) predictable. */
static int encoder_threads(int height)
{
    const int n = height / 128;
    return n < 1 ? 1 : n > 8 ? 8 : n;
}

h3_mux_opt h3_output_mux(const h3_request *rq, int width, int height, int64_t n_frames,
                         int64_t n_samples)
{
    h3_mux_opt opt = h3_mux_default(width, height, n_frames);

    opt.n_samples = n_samples;
    opt.n_threads = encoder_threads(height);

    opt.codec = rq->codec;
    opt.preset = rq->preset;
    opt.crf = rq->crf;
    opt.has_meta = rq->has_metadata;
    return opt;
}

static h3_status frame_format(h3_frame_format *out, const char *word)
{
    *out = H3_FRAMES_PNG;
    if (!word || strcmp(word, "png") == 0) return H3_OK;
    *out = H3_FRAMES_PPM;
    if (strcmp(word, "ppm") == 0) return H3_OK;
    return h3_fail(H3_E_ARG, "frames format %s: expected png or ppm", word);
}

/* A name that can become a file: folder there and writable, no folder of that name. */
static h3_status check_name(const char *path)
{
    h3_atomic a;

    if (!*path || strcmp(path, "-") == 0)
        return h3_fail(H3_E_ARG, "output %s: standard output is not supported, give a file name",
                       *path ? path : "\"\"");
    H3_TRY(h3_atomic_open(&a, path)); // really creates the temporary: a read-only disk shows now
    h3_atomic_abort(&a);
    return H3_OK;
}

/* Refuses a name whose ending, one of `others`, promises what is not written there. */
static h3_status check_ending(const char *path, const char *const *others, size_t n,
                              const char *written, const char *ending)
{
    const char *dot = strrchr(path, '.');

    for (size_t i = 0; dot && i < n; i++)
        if (strcasecmp(dot + 1, others[i]) == 0)
            return h3_fail(H3_E_ARG, "output %s: %s, name it %.*s.%s", path, written,
                           (int)(dot - path), path, ending);
    return H3_OK;
}

h3_status h3_output_container(const char *path)
{
    static const char *const others[] = {"avi",  "mkv",         "webm", "gif", "wmv",
                                         "flv",  "wav",         "png",  "ppm", "jpg",
                                         "jpeg", "safetensors", "gguf", "json"};

    return check_ending(path, others, sizeof others / sizeof *others, "only MP4 is written", "mp4");
}

static h3_status check_sound(const char *path)
{
    static const char *const others[] = {"mp3",  "m4a", "aac",  "flac", "ogg",
                                         "opus", "mp4", "aiff", "wma"};

    return check_ending(path, others, sizeof others / sizeof *others, "sound is written as WAV",
                        "wav");
}

const char *h3_output_base(const h3_request *rq)
{
    return rq->out_path ? rq->out_path : rq->frames_dir ? rq->frames_dir : rq->wav_path;
}

bool h3_output_has_picture(const h3_request *rq)
{
    return rq->out_path || rq->frames_dir || rq->on_frame;
}

bool h3_output_saves_latents(const h3_request *rq)
{
    return rq->save_latents && (rq->latents_path || h3_output_base(rq));
}

h3_status h3_output_any(const h3_request *rq)
{
    if (h3_output_base(rq)) return H3_OK;
    if (!rq->on_frame && !rq->on_sound)
        return h3_fail(H3_E_ARG,
                       "no output given: an MP4, a folder of frames, a WAV, or a callback");
    if (rq->keep_latents && !rq->latents_path)
        return h3_fail(H3_E_ARG, "latents are to be kept, and no file is written that could give "
                                 "them a name; set latents_path");
    if (rq->checkpoint_every > 0 && !rq->checkpoint_path)
        return h3_fail(H3_E_ARG,
                       "checkpoints are asked for, and no file is written that could give "
                       "them a name; set checkpoint_path");
    return H3_OK;
}

h3_status h3_output_check(const h3_request *rq, int width, int height, int64_t n_frames)
{
    h3_frame_format format;

    H3_TRY(frame_format(&format, rq->frames_format));
    if (rq->out_path) {
        const h3_mux_opt opt = h3_output_mux(rq, width, height, n_frames, 0);
        H3_TRY(h3_output_container(rq->out_path));
        H3_TRY(check_name(rq->out_path));
        H3_TRY(h3_mux_check(&opt));
    }
    if (rq->wav_path) H3_TRY(check_sound(rq->wav_path));
    if (rq->wav_path) H3_TRY(check_name(rq->wav_path));
    /* A latents file that cannot be written is a warning (the run is worth more), a wrong name not.
     */
    if (rq->latents_path && rq->save_latents && h3_path_is_dir(rq->latents_path))
        return h3_fail(H3_E_ARG, "latents %s: is a folder, give the name of a file",
                       rq->latents_path);
    if (rq->keep_latents && rq->latents_path) H3_TRY(check_name(rq->latents_path)); // asked for
    if (rq->frames_dir) H3_TRY(h3_frames_check(rq->frames_dir));
    return h3_output_any(rq);
}

h3_status h3_output_open(h3_output *o, const h3_request *rq, int width, int height,
                         int64_t n_frames, int64_t n_samples, const h3_meta *meta, int n_meta)
{
    h3_frame_format format;

    memset(o, 0, sizeof *o);
    o->rq = rq;
    o->width = width;
    o->height = height;
    o->n_frames = n_frames;
    H3_TRY(frame_format(&format, rq->frames_format));
    if (rq->out_path) {
        h3_mux_opt opt = h3_output_mux(rq, width, height, n_frames, n_samples);
        opt.meta = meta;
        opt.n_meta = n_meta;
        H3_TRY(h3_mux_open(&o->mux, rq->out_path, &opt));
        snprintf(o->codec, sizeof o->codec, "%s", h3_mux_codec(o->mux));
    }
    if (rq->frames_dir) {
        const h3_status st = h3_frames_open(&o->frames, rq->frames_dir, width, height, format);
        if (st != H3_OK) {
            h3_output_abort(o);
            return st;
        }
    }
    return H3_OK;
}

h3_status h3_output_sound(h3_output *o, float *pcm, int64_t n)
{
    const h3_sound_part all = {.n = n, .count = n, .left = pcm, .right = pcm + n};

    o->pcm = pcm;
    o->n_samples = n;
    if (o->mux) H3_TRY(h3_mux_audio(o->mux, pcm, n, n));
    if (o->rq->on_sound && !o->rq->on_sound(o->rq->user, &all))
        return h3_fail(H3_E_CANCELLED, "stopped by the one who was given the sound");
    return H3_OK;
}

/* To the caller's memory. */
static h3_status show_frame(const h3_output *o, const uint8_t *rgb)
{
    const h3_frame f = {.index = o->n_done,
                        .count = o->n_frames,
                        .width = o->width,
                        .height = o->height,
                        .stride = (size_t)o->width * 3,
                        .rgb = rgb};

    if (!o->rq->on_frame || o->rq->on_frame(o->rq->user, &f)) return H3_OK;
    return h3_fail(H3_E_CANCELLED, "stopped by the one who was given frame %lld of %lld",
                   (long long)o->n_done, (long long)o->n_frames);
}

h3_status h3_output_frames(h3_output *o, const uint8_t *rgb, int64_t n)
{
    const size_t bytes = (size_t)o->width * (size_t)o->height * 3;

    for (int64_t i = 0; i < n; i++, rgb += bytes) {
        uint64_t sum[3] = {0}, sum2[3] = {0};
        for (size_t k = 0; k < bytes; k += 3)
            for (int c = 0; c < 3; c++) {
                sum[c] += rgb[k + (size_t)c];
                sum2[c] += (uint64_t)rgb[k + (size_t)c] * rgb[k + (size_t)c];
            }
        for (int c = 0; c < 3; c++) {
            o->sum[c] += sum[c];
            o->sum2[c] += sum2[c];
        }
        if (o->mux) H3_TRY(h3_mux_frame(o->mux, rgb));
        if (o->frames) H3_TRY(h3_frames_write(o->frames, rgb));
        H3_TRY(show_frame(o, rgb));
        o->n_done++;
    }
    return H3_OK;
}

h3_status h3_output_finish(h3_output *o)
{
    h3_status st = H3_OK;

    if (o->n_done != o->n_frames && h3_output_has_picture(o->rq))
        st = h3_fail(H3_E_INTERNAL, "%lld frames were decoded, %lld planned", (long long)o->n_done,
                     (long long)o->n_frames);
    if (st == H3_OK && o->rq->wav_path)
        st = h3_wav_write(o->rq->wav_path, o->pcm, o->n_samples, o->n_samples, 32000);
    if (st == H3_OK && o->mux) st = h3_mux_finish(&o->mux);
    if (st != H3_OK) {
        h3_output_abort(o);
        return st;
    }
    h3_frames_close(&o->frames, true);
    return H3_OK;
}

void h3_output_abort(h3_output *o)
{
    h3_mux_abort(&o->mux);
    h3_frames_close(&o->frames, false);
}

bool h3_output_is_flat(const h3_output *o)
{
    const double n = (double)o->n_done * o->width * o->height;
    double spread = 0;

    for (int c = 0; n > 0 && c < 3; c++) {
        const double mean = (double)o->sum[c] / n;
        spread += (double)o->sum2[c] / n - mean * mean;
    }
    return n > 0 && spread < 1e-3;
}

double h3_output_mean(const h3_output *o)
{
    const double n = (double)o->n_done * o->width * o->height * 3;
    return n > 0 ? (double)(o->sum[0] + o->sum[1] + o->sum[2]) / n : 255;
}
