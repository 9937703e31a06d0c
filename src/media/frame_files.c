/**
 * Frame folders, WAV files and the two conversions to integers; see frame_files.h.
 *
 * PNG goes through libavcodec (filters and deflate), PPM is written here. Conversion to bytes and
 * to PCM follows the reference's writers to the last level: bytes round half to even, samples
 * truncate.
 */
#include "frame_files.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <libavcodec/avcodec.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "av_util.h"
#include "file.h"
#include "image.h"
#include "resample.h"
#include "size.h"
#include "sound.h"

enum { MAX_SIDE = 65535, DIGITS = 5 };

static const char *const extension[] = {[H3_FRAMES_PNG] = "png", [H3_FRAMES_PPM] = "ppm"};

/** Encodes one picture after the other; PNG keeps its encoder between frames. */
typedef struct pic_writer {
    int width, height;
    h3_frame_format format;
    AVCodecContext *png;
    AVFrame *frame;
    AVPacket *packet;
} pic_writer;

struct h3_frames {
    pic_writer pic;
    char *dir;
    int64_t n;
    bool is_new_dir;
};

static void pic_close(pic_writer *p)
{
    avcodec_free_context(&p->png);
    av_frame_free(&p->frame);
    av_packet_free(&p->packet);
}

static h3_status pic_open(pic_writer *p, int width, int height, h3_frame_format format)
{
    const AVCodec *codec;

    *p = (pic_writer){.width = width, .height = height, .format = format};
    if (width < 1 || height < 1 || width > MAX_SIDE || height > MAX_SIDE)
        return h3_fail(H3_E_ARG, "a picture of %dx%d: each side must be 1..%d", width, height,
                       MAX_SIDE);
    if (format == H3_FRAMES_PPM) return H3_OK;
    h3_av_quiet();
    codec = avcodec_find_encoder(AV_CODEC_ID_PNG);
    if (!codec)
        return h3_fail(H3_E_UNSUPPORTED, "this libavcodec has no PNG encoder; write PPM frames");
    p->png = avcodec_alloc_context3(codec);
    p->frame = av_frame_alloc();
    p->packet = av_packet_alloc();
    if (!p->png || !p->frame || !p->packet) return h3_fail(H3_E_NOMEM, "no memory for PNG");
    p->png->width = p->frame->width = width;
    p->png->height = p->frame->height = height;
    p->png->pix_fmt = AV_PIX_FMT_RGB24;
    p->frame->format = AV_PIX_FMT_RGB24;
    p->png->time_base = (AVRational){1, 1};
    p->png->thread_count = 1;
    p->png->flags |= AV_CODEC_FLAG_BITEXACT;
    if (avcodec_open2(p->png, codec, NULL) < 0 || av_frame_get_buffer(p->frame, 0) < 0)
        return h3_fail(H3_E_NOMEM, "the PNG encoder cannot be opened for %dx%d", width, height);
    return H3_OK;
}

static h3_status encode_png(pic_writer *p, const uint8_t *rgb, const char *path)
{
    const size_t row = (size_t)p->width * 3;
    int err;

    if (av_frame_make_writable(p->frame) < 0) return h3_fail(H3_E_NOMEM, "no memory for PNG");
    for (int y = 0; y < p->height; y++)
        memcpy(p->frame->data[0] + (ptrdiff_t)y * p->frame->linesize[0], rgb + (size_t)y * row,
               row);
    if ((err = avcodec_send_frame(p->png, p->frame)) < 0 ||
        (err = avcodec_receive_packet(p->png, p->packet)) < 0)
        return h3_av_fail(err, H3_E_INTERNAL, path, "PNG");
    return H3_OK;
}

static h3_status write_failed(h3_atomic *a, const char *path)
{
    const int e = errno;

    h3_atomic_abort(a);
    return h3_av_fail(AVERROR(e), H3_E_IO, path, "cannot be written");
}

static h3_status pic_save(pic_writer *p, const uint8_t *rgb, const char *path)
{
    const size_t bytes = (size_t)p->width * (size_t)p->height * 3;
    h3_atomic a;
    bool ok;

    if (p->format == H3_FRAMES_PNG) H3_TRY(encode_png(p, rgb, path));
    h3_status st = h3_atomic_open(&a, path);
    if (st == H3_OK) {
        if (p->format == H3_FRAMES_PNG)
            ok = fwrite(p->packet->data, 1, (size_t)p->packet->size, a.fp) ==
                 (size_t)p->packet->size;
        else
            ok = fprintf(a.fp, "P6\n%d %d\n255\n", p->width, p->height) > 0 &&
                 fwrite(rgb, 1, bytes, a.fp) == bytes;
        st = ok && fflush(a.fp) == 0 ? h3_atomic_commit(&a) : write_failed(&a, path);
    }
    if (p->packet) av_packet_unref(p->packet);
    return st;
}

h3_status h3_frame_save(const char *path, const uint8_t *rgb, int width, int height,
                        h3_frame_format format)
{
    pic_writer p;
    h3_status st = pic_open(&p, width, height, format);

    if (st == H3_OK) st = pic_save(&p, rgb, path);
    pic_close(&p);
    return st;
}

/** Number at the end of a frame's name; -1 when the name is not that of a frame. */
static int64_t frame_number(const char *name)
{
    const char *dot = strrchr(name, '.'), *d = dot;
    int64_t v = 0;

    if (!dot || name[0] == '.' || (strcasecmp(dot, ".png") != 0 && strcasecmp(dot, ".ppm") != 0))
        return -1;
    while (d > name && isdigit((unsigned char)d[-1]))
        d--;
    if (d == dot || dot - d > 12) return -1;
    for (; d < dot; d++)
        v = 10 * v + (*d - '0');
    return v;
}

typedef struct numbered {
    int64_t number;
    char *path;
} numbered;

static int by_number(const void *a, const void *b)
{
    const numbered *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static h3_status read_folder(numbered **out, int64_t *n, const char *dir)
{
    DIR *d = opendir(dir);
    numbered *list = NULL;
    size_t room = 0;

    *out = NULL;
    *n = 0;
    if (!d) return h3_av_fail(AVERROR(errno), H3_E_IO, dir, "the folder cannot be read");
    for (struct dirent *e; (e = readdir(d));) {
        const int64_t number = frame_number(e->d_name);
        if (number < 0) continue;
        if ((size_t)*n == room) {
            room = room ? 2 * room : 256;
            numbered *grown = realloc(list, room * sizeof *list);
            if (!grown) {
                closedir(d);
                *out = list;
                return h3_fail(H3_E_NOMEM, "%s: no memory for %zu names", dir, room);
            }
            list = grown;
        }
        list[(*n)++] = (numbered){number, h3_path_join(dir, e->d_name)};
    }
    closedir(d);
    if (*n) qsort(list, (size_t)*n, sizeof *list, by_number);
    *out = list;
    return H3_OK;
}

static h3_status check_numbers(const numbered *list, int64_t n, const char *dir)
{
    if (!n)
        return h3_fail(H3_E_MISSING,
                       "%s: holds no frames (names ending in a number and .png or .ppm)", dir);
    for (int64_t i = 1; i < n; i++)
        if (list[i].number != list[i - 1].number + 1)
            return h3_fail(H3_E_FORMAT, "%s: frame %lld is %s", dir,
                           (long long)list[i - 1].number + 1,
                           list[i].number == list[i - 1].number ? "there twice" : "missing");
    return H3_OK;
}

h3_status h3_frames_list(char ***paths, int64_t *n, const char *dir)
{
    numbered *list;
    h3_status st = read_folder(&list, n, dir);

    *paths = NULL;
    if (st == H3_OK) st = check_numbers(list, *n, dir);
    if (st == H3_OK && !(*paths = malloc((size_t)*n * sizeof **paths)))
        st = h3_fail(H3_E_NOMEM, "%s: no memory for %lld names", dir, (long long)*n);
    for (int64_t i = 0; i < *n; i++) {
        if (st == H3_OK)
            (*paths)[i] = list[i].path;
        else
            free(list[i].path);
    }
    free(list);
    if (st != H3_OK) *n = 0;
    return st;
}

void h3_frames_list_free(char ***paths, int64_t n)
{
    for (int64_t i = 0; *paths && i < n; i++)
        free((*paths)[i]);
    free(*paths);
    *paths = NULL;
}

static h3_status prepare_folder(h3_frames *f, const char *dir)
{
    if (mkdir(dir, 0777) == 0) {
        f->is_new_dir = true;
        return H3_OK;
    }
    if (errno == ENOENT)
        return h3_fail(H3_E_MISSING, "%s: the folder above it does not exist", dir);
    if (errno != EEXIST || !h3_path_is_dir(dir))
        return h3_fail(H3_E_IO, "%s: the folder cannot be made: %s", dir, strerror(errno));
    return h3_frames_check(dir);
}

h3_status h3_frames_check(const char *dir)
{
    numbered *list = NULL;
    int64_t n = 0;
    h3_status st;

    if (!*dir) return h3_fail(H3_E_ARG, "frames folder \"\": give the name of a folder");
    if (!h3_path_exists(dir)) { // it will be made
        const bool is_made = mkdir(dir, 0777) == 0;
        if (is_made && rmdir(dir) == 0) return H3_OK;
        return errno == ENOENT
                   ? h3_fail(H3_E_MISSING, "%s: the folder above it does not exist", dir)
                   : h3_fail(H3_E_IO, "%s: the folder cannot be made: %s", dir, strerror(errno));
    }
    if (!h3_path_is_dir(dir)) return h3_fail(H3_E_ARG, "frames folder %s: is a file", dir);
    st = read_folder(&list, &n, dir);
    if (st == H3_OK && n)
        st = h3_fail(H3_E_ARG, "%s: holds %lld frames already; old and new ones would mix", dir,
                     (long long)n);
    for (int64_t i = 0; i < n; i++)
        free(list[i].path);
    free(list);
    return st;
}

h3_status h3_frames_open(h3_frames **out, const char *dir, int width, int height,
                         h3_frame_format format)
{
    h3_frames *f = calloc(1, sizeof *f);
    h3_status st;

    *out = NULL;
    if (!f) return h3_fail(H3_E_NOMEM, "%s: no memory", dir);
    f->dir = h3_strdupf("%s", dir);
    st = pic_open(&f->pic, width, height, format);
    if (st == H3_OK) st = prepare_folder(f, dir);
    if (st == H3_OK)
        *out = f;
    else
        h3_frames_close(&f, true);
    return st;
}

static char *frame_path(const h3_frames *f, int64_t i)
{
    return h3_strdupf("%s/frame_%0*lld.%s", f->dir, DIGITS, (long long)i, extension[f->pic.format]);
}

h3_status h3_frames_write(h3_frames *f, const uint8_t *rgb)
{
    char *path = frame_path(f, f->n);
    const h3_status st = pic_save(&f->pic, rgb, path);

    free(path);
    if (st == H3_OK) f->n++;
    return st;
}

void h3_frames_close(h3_frames **fp, bool keep)
{
    h3_frames *f = fp ? *fp : NULL;

    if (!f) return;
    for (int64_t i = 0; !keep && i < f->n; i++) {
        char *path = frame_path(f, i);
        unlink(path);
        free(path);
    }
    if (!keep && f->is_new_dir) rmdir(f->dir);
    pic_close(&f->pic);
    free(f->dir);
    free(f);
    *fp = NULL;
}

void h3_pcm16(int16_t *out, const float *pcm, int64_t n, int64_t stride)
{
    for (int64_t i = 0; i < n; i++)
        for (int c = 0; c < 2; c++) {
            float v = pcm[c * stride + i];
            v = v < -1.0f ? -1.0f : v > 1.0f ? 1.0f : v == v ? v : 0.0f;
            out[2 * i + c] = (int16_t)(v * 32767.0f);
        }
}

void h3_rgb8(uint8_t *out, const float *rgb01, int64_t h, int64_t w)
{
    const int64_t plane = h * w;

    for (int c = 0; c < 3; c++)
        for (int64_t i = 0; i < plane; i++) {
            float v = rgb01[c * plane + i];
            v = v > 1.0f ? 1.0f : v > 0.0f ? v : 0.0f;
            out[3 * i + c] = (uint8_t)rintf(v * 255.0f);
        }
}

static void put_le(uint8_t *p, uint32_t v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

h3_status h3_wav_write(const char *path, const float *pcm, int64_t n, int64_t stride,
                       int sample_rate)
{
    enum { BLOCK = 4096 };
    uint8_t head[44] = "RIFF....WAVEfmt ";
    h3_atomic a;
    bool ok;

    if (n < 0 || n > (INT32_MAX - 44) / 4 || sample_rate < 1)
        return h3_fail(H3_E_ARG, "%s: a WAV cannot hold %lld samples at %d Hz", path, (long long)n,
                       sample_rate);
    put_le(head + 4, (uint32_t)(36 + 4 * n), 4);
    put_le(head + 16, 16, 4);
    put_le(head + 20, 1, 2); // PCM
    put_le(head + 22, 2, 2); // channels
    put_le(head + 24, (uint32_t)sample_rate, 4);
    put_le(head + 28, (uint32_t)sample_rate * 4, 4);
    put_le(head + 32, 4, 2);
    put_le(head + 34, 16, 2);
    memcpy(head + 36, "data", 4);
    put_le(head + 40, (uint32_t)(4 * n), 4);
    H3_TRY(h3_atomic_open(&a, path));
    ok = fwrite(head, 1, sizeof head, a.fp) == sizeof head;
    for (int64_t at = 0; ok && at < n; at += BLOCK) {
        int16_t v[2 * BLOCK];
        uint8_t bytes[4 * BLOCK];
        const int64_t m = n - at < BLOCK ? n - at : BLOCK;
        h3_pcm16(v, pcm + at, m, stride);
        for (int64_t i = 0; i < 2 * m; i++)
            put_le(bytes + 2 * i, (uint16_t)v[i], 2);
        ok = fwrite(bytes, 4, (size_t)m, a.fp) == (size_t)m;
    }
    return ok && fflush(a.fp) == 0 ? h3_atomic_commit(&a) : write_failed(&a, path);
}

/** The sound file, at the rate the video wants. */
static h3_status load_sound(h3_sound *s, const char *wav, int rate)
{
    H3_TRY(h3_sound_load(s, h3_media_file(wav), 0.0, NULL));
    return rate ? h3_sound_resample(s, rate) : H3_OK;
}

static h3_status mux_frames(h3_mux *m, const h3_mux_opt *o, char **paths, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        h3_image img;
        h3_status st;
        H3_TRY(h3_image_load(&img, h3_media_file(paths[i])));
        if (img.width != o->width || img.height != o->height)
            st = h3_fail(H3_E_SHAPE, "%s: is %dx%d, the first frame is %dx%d", paths[i], img.width,
                         img.height, o->width, o->height);
        else
            st = h3_mux_frame(m, img.rgb);
        h3_image_free(&img);
        H3_TRY(st);
    }
    return H3_OK;
}

h3_status h3_mux_folder(const char *path, const char *dir, const char *wav, const h3_mux_opt *opt)
{
    h3_mux_opt o = *opt;
    h3_sound sound = {0};
    h3_image first = {0};
    h3_mux *m = NULL;
    char **paths = NULL;
    int64_t n = 0;
    h3_status st = h3_frames_list(&paths, &n, dir);

    if (st == H3_OK) st = h3_image_load(&first, h3_media_file(paths[0]));
    if (st == H3_OK && wav) st = load_sound(&sound, wav, o.sample_rate);
    o.width = first.width;
    o.height = first.height;
    o.n_frames = n;
    o.sample_rate = sound.sample_rate;
    if (st == H3_OK) st = h3_mux_open(&m, path, &o);
    if (st == H3_OK) st = mux_frames(m, &o, paths, n);
    if (st == H3_OK && wav) st = h3_mux_audio(m, sound.pcm, sound.n, sound.n);
    if (st == H3_OK)
        st = h3_mux_finish(&m);
    else
        h3_mux_abort(&m);
    h3_sound_free(&sound);
    h3_image_free(&first);
    h3_frames_list_free(&paths, n);
    return st;
}
