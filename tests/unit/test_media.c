/**
 * The media room from outside: files are written, damaged, read back.
 *
 * Moving pictures carry their frame number as a gray level, so a test knows which source frame it
 * was given. Material this build cannot write itself (H.265, VP9, AV1, MP3, odd frame rates) comes
 * from the ffmpeg program; where that is missing these tests say so and are skipped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <libavcodec/avcodec.h>
#include <libavutil/crc.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clip.h"
#include "encode.h"
#include "file.h"
#include "frame_files.h"
#include "image.h"
#include "image_head.h"
#include "probe.h"
#include "resample.h"
#include "resize.h"
#include "sound.h"
#include "vision_rows.h"

static char work[] = "/tmp/h3av-media-XXXXXX";

#define assert_ok(expr)                                         \
    do {                                                        \
        const h3_status s_ = (expr);                            \
        if (s_ != H3_OK) fail_msg("%s: %s", #expr, h3_error()); \
    } while (0)
#define assert_fails(code, word, expr)                                                        \
    do {                                                                                      \
        const h3_status s_ = (expr);                                                          \
        if (s_ != (code) || !strstr(h3_error(), word))                                        \
            fail_msg("%s gave %s \"%s\", expected %s with \"%s\"", #expr, h3_status_name(s_), \
                     h3_error(), h3_status_name(code), word);                                 \
    } while (0)

/** Path inside the test's folder; a ring of 8. */
static const char *at(const char *fmt, ...) H3_PRINTF(1, 2);
static const char *at(const char *fmt, ...)
{
    static char ring[8][512];
    static unsigned next;
    char *s = ring[next++ % 8];
    va_list ap;
    int n = snprintf(s, 512, "%s/", work);

    va_start(ap, fmt);
    vsnprintf(s + n, 512 - (size_t)n, fmt, ap);
    va_end(ap);
    return s;
}

static int count_files(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;

    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static bool has_ffmpeg(void)
{
    static int known = -1;
    if (known < 0) known = system("ffmpeg -version >/dev/null 2>&1") == 0;
    if (!known) print_message("no ffmpeg program: this test is skipped\n");
    return known;
}

/** ffmpeg with the given arguments, in the test's folder; false when this build cannot do it. */
static bool ffmpeg(const char *fmt, ...) H3_PRINTF(1, 2);
static bool ffmpeg(const char *fmt, ...)
{
    char args[2048], command[2600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(args, sizeof args, fmt, ap);
    va_end(ap);
    snprintf(command, sizeof command, "cd %s && ffmpeg -nostdin -v quiet -y %s", work, args);
    return system(command) == 0;
}

static void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static void write_text(const char *path, const char *text)
{
    write_file(path, text, strlen(text));
}

static uint8_t *read_file(const char *path, size_t *n)
{
    char *text;
    assert_ok(h3_file_read(&text, n, path, (size_t)1 << 30));
    return (uint8_t *)text;
}

static uint8_t *noise(size_t n, unsigned seed)
{
    uint8_t *p = malloc(n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (uint8_t)(seed >> 24);
    }
    return p;
}

/* ---- MP4 ---- */

enum { SIDE = 64 };

/** A frame whose gray level tells its number. */
static int gray_of(int64_t i)
{
    return 20 + (int)(i % 30) * 7;
}

static void write_frames(h3_mux *m, int64_t n)
{
    uint8_t rgb[SIDE * SIDE * 3];
    for (int64_t i = 0; i < n; i++) {
        memset(rgb, gray_of(i), sizeof rgb);
        assert_ok(h3_mux_frame(m, rgb));
    }
}

/** Left a tone of 440 Hz, right one of 880 Hz, to the very end. */
static float *tones(int64_t n)
{
    float *p = malloc((size_t)n * 2 * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) {
        p[i] = 0.5f * (float)sin(2.0 * M_PI * 440.0 * (double)i / 32000.0);
        p[n + i] = 0.5f * (float)sin(2.0 * M_PI * 880.0 * (double)i / 32000.0);
    }
    return p;
}

static double rms_error(const float *a, const float *b, int64_t n)
{
    double s = 0.0;
    for (int64_t i = 0; i < n; i++)
        s += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(s / (double)n);
}

static void write_video(const char *path, int64_t frames, int64_t samples, const h3_mux_opt *with)
{
    h3_mux_opt o = with ? *with : h3_mux_default(SIDE, SIDE, frames);
    float *pcm = tones(samples);
    h3_mux *m;

    assert_ok(h3_mux_open(&m, path, &o));
    write_frames(m, frames);
    for (int64_t i = 0; i < samples; i += 5000) // in pieces of a larger block
        assert_ok(h3_mux_audio(m, pcm + i, samples - i < 5000 ? samples - i : 5000, samples));
    assert_ok(h3_mux_finish(&m));
    assert_null(m);
    free(pcm);
}

static void assert_same_files(const char *a, const char *b)
{
    FILE *fa = fopen(a, "rb"), *fb = fopen(b, "rb");
    int ca, cb;

    assert_true(fa && fb);
    do {
        ca = getc(fa);
        cb = getc(fb);
        assert_int_equal(ca, cb);
    } while (ca != EOF);
    fclose(fa);
    fclose(fb);
}

/** Sound that is announced and given first is written along with the frames: the same file. */
static void test_mp4_early_sound(void **state)
{
    static const int64_t cases[][2] = {{124, 165333}, {22, 29333}, {1, 1}, {60, 1024}, {2, 200000}};
    char late[512], early[512];
    (void)state;

    snprintf(late, sizeof late, "%s", at("late.mp4"));
    snprintf(early, sizeof early, "%s", at("early.mp4"));
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const int64_t frames = cases[k][0], n = cases[k][1];
        h3_mux_opt o = h3_mux_default(SIDE, SIDE, frames);
        float *pcm = tones(n);
        h3_mux *m;

        write_video(late, frames, n, NULL);
        o.n_samples = n;
        assert_ok(h3_mux_open(&m, early, &o));
        assert_ok(h3_mux_audio(m, pcm, n, n));
        assert_fails(H3_E_ARG, "announced", h3_mux_audio(m, pcm, 1, 1));
        write_frames(m, frames);
        assert_ok(h3_mux_finish(&m));
        assert_same_files(late, early);

        assert_ok(h3_mux_open(&m, early, &o)); // one sample short
        if (n > 1) assert_ok(h3_mux_audio(m, pcm, n - 1, n));
        write_frames(m, frames);
        assert_fails(H3_E_ARG, n > 1 ? "announced" : "sound", h3_mux_finish(&m));
        free(pcm);
    }
}

/** Every frame and every sample comes back, in place: nothing lost, added or moved. */
static void test_mp4_counts(void **state)
{
    static const int64_t cases[][2] = {{22, 29333}, {124, 165333}, {1, 1},
                                       {39, 52000}, {5, 1024},     {3, 1023}};
    (void)state;

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const int64_t frames = cases[k][0], n = cases[k][1];
        const char *path = at("counts.mp4");
        float *pcm = tones(n);
        h3_clip clip;
        h3_sound s;

        write_video(path, frames, n, NULL);
        assert_ok(h3_clip_load(&clip, h3_media_file(path), 1000, 0, 0, NULL));
        assert_int_equal(clip.n, frames);
        assert_false(clip.is_variable);
        assert_true(clip.fps == 24.0 || frames == 1);
        for (int64_t i = 0; i < clip.n; i++)
            assert_true(abs(clip.rgb[i * SIDE * SIDE * 3 + 3000] - gray_of(i)) <= 3);
        assert_ok(h3_sound_load(&s, h3_media_file(path), 0.0, NULL));
        assert_int_equal(s.n, n);
        assert_int_equal(s.sample_rate, 32000);
        assert_int_equal(s.n_channels, 2);
        if (n > 5000) {
            assert_true(rms_error(s.pcm, pcm, n) < 0.02);         // left is 440 Hz, not shifted
            assert_true(rms_error(s.pcm + n, pcm + n, n) < 0.02); // right is 880 Hz
            assert_true(rms_error(s.pcm + n, pcm, n) > 0.3);
            assert_true(rms_error(s.pcm + n - 1000, pcm + n - 1000, 1000) < 0.06); // up to the end
        }
        h3_sound_free(&s);
        h3_clip_free(&clip);
        free(pcm);
    }
}

/** Another decoder counts the same. */
static void test_mp4_counts_by_ffmpeg(void **state)
{
    size_t n;
    (void)state;

    if (!has_ffmpeg()) skip();
    write_video(at("count.mp4"), 124, 165333, NULL);
    assert_true(ffmpeg(
        "-i count.mp4 -map 0:a -f f32le count.f32 -map 0:v -f rawvideo -pix_fmt gray count.raw"));
    free(read_file(at("count.f32"), &n));
    assert_int_equal(n, 165333 * 8);
    free(read_file(at("count.raw"), &n));
    assert_int_equal(n, 124 * SIDE * SIDE);
}

static size_t find_box(const uint8_t *d, size_t n, const char *type)
{
    for (size_t i = 0; i + 8 <= n;) {
        const size_t len =
            (size_t)d[i] << 24 | (size_t)d[i + 1] << 16 | (size_t)d[i + 2] << 8 | d[i + 3];
        if (memcmp(d + i + 4, type, 4) == 0) return i;
        if (len < 8) break;
        i += len;
    }
    return n;
}

static bool contains(const uint8_t *d, size_t n, const char *text)
{
    return memmem(d, n, text, strlen(text)) != NULL;
}

static void test_mp4_layout_and_metadata(void **state)
{
    static const h3_meta lines[] = {{"prompt", "ein Käfer \"auf\" Gras"}, {"seed", "42"}};
    h3_mux_opt o = h3_mux_default(SIDE, SIDE, 30);
    uint8_t *d, *again;
    size_t n, n2;
    (void)state;

    o.meta = lines;
    o.n_meta = 2;
    o.has_meta = true;
    write_video(at("meta.mp4"), 30, 40000, &o);
    d = read_file(at("meta.mp4"), &n);
    assert_true(find_box(d, n, "moov") < find_box(d, n, "mdat"));
    assert_true(contains(d, n, "prompt") && contains(d, n, lines[0].value) && contains(d, n, "42"));
    free(d);

    o.has_meta = false;
    write_video(at("plain.mp4"), 30, 40000, &o);
    write_video(at("plain2.mp4"), 30, 40000, &o);
    d = read_file(at("plain.mp4"), &n);
    again = read_file(at("plain2.mp4"), &n2);
    assert_false(contains(d, n, "prompt") || contains(d, n, "x264") || contains(d, n, "Lav"));
    assert_int_equal(n, n2);
    assert_memory_equal(d, again, n); // equal input, equal file
    free(d);
    free(again);
}

/** Primary colours survive the trip within the loss of 4:2:0 and 8 bit limited range. */
static void test_mp4_colours(void **state)
{
    static const uint8_t colours[][3] = {{255, 0, 0},     {0, 255, 0},    {0, 0, 255},
                                         {255, 255, 255}, {0, 0, 0},      {200, 80, 40},
                                         {30, 120, 220},  {128, 128, 128}};
    h3_mux_opt o = h3_mux_default(128, 64, 3);
    uint8_t rgb[64 * 128 * 3];
    h3_clip clip;
    h3_mux *m;
    (void)state;

    for (int y = 0; y < 64; y++)
        for (int x = 0; x < 128; x++)
            memcpy(rgb + (y * 128 + x) * 3, colours[y / 32 * 4 + x / 32], 3);
    o.crf = 1;
    o.sample_rate = 0;
    assert_ok(h3_mux_open(&m, at("colour.mp4"), &o));
    for (int i = 0; i < 3; i++)
        assert_ok(h3_mux_frame(m, rgb));
    assert_ok(h3_mux_finish(&m));
    assert_ok(h3_clip_load(&clip, h3_media_file(at("colour.mp4")), 3, 0, 0, NULL));
    assert_int_equal(clip.width, 128);
    for (int k = 0; k < 8; k++) {
        const int y = k / 4 * 32 + 16, x = k % 4 * 32 + 16;
        for (int c = 0; c < 3; c++)
            assert_true(abs(clip.rgb[(y * 128 + x) * 3 + c] - colours[k][c]) <= 4);
    }
    h3_clip_free(&clip);
}

static void test_mp4_refusals(void **state)
{
    h3_mux_opt o = h3_mux_default(SIDE, SIDE, 2);
    const float bad[2] = {0.0f, NAN};
    h3_mux *m;
    (void)state;

    o.width = 65;
    assert_fails(H3_E_ARG, "even", h3_mux_open(&m, at("no.mp4"), &o));
    o.width = 0;
    assert_fails(H3_E_ARG, "0x64", h3_mux_open(&m, at("no.mp4"), &o));
    o = h3_mux_default(SIDE, SIDE, 2);
    o.codec = "mpeg9";
    assert_fails(H3_E_ARG, "libx264", h3_mux_open(&m, at("no.mp4"), &o));
    o.codec = "libopenh264";
    if (!avcodec_find_encoder_by_name("libopenh264"))
        assert_fails(H3_E_UNSUPPORTED, "libopenh264", h3_mux_check(&o));
    o.codec = "auto";
    o.crf = 52;
    assert_fails(H3_E_ARG, "crf", h3_mux_check(&o));
    o.crf = 18;
    o.preset = "sideways";
    assert_fails(H3_E_ARG, "sideways", h3_mux_open(&m, at("no.mp4"), &o));
    o.preset = NULL;
    assert_fails(H3_E_MISSING, "nowhere", h3_mux_open(&m, at("nowhere/no.mp4"), &o));
    assert_fails(H3_E_ARG, "folder", h3_mux_open(&m, work, &o));

    assert_ok(h3_mux_open(&m, at("no.mp4"), &o));
    write_frames(m, 2);
    assert_fails(H3_E_ARG, "more than", h3_mux_frame(m, (const uint8_t *)bad));
    assert_fails(H3_E_NUMERIC, "NaN", h3_mux_audio(m, bad, 1, 1));
    h3_mux_abort(&m);
    assert_ok(h3_mux_open(&m, at("no.mp4"), &o));
    write_frames(m, 1);
    assert_fails(H3_E_ARG, "2 frames were announced but 1", h3_mux_finish(&m));
    assert_null(m);
    assert_ok(h3_mux_open(&m, at("no.mp4"), &o));
    write_frames(m, 2);
    assert_fails(H3_E_ARG, "no sound was given", h3_mux_finish(&m));
    h3_mux_abort(&m);
    assert_false(h3_path_exists(at("no.mp4")));
}

/** Names that a shell or a URL parser would take apart. */
static void test_mp4_names(void **state)
{
    static const char *const names[] = {"-",      "-y.mp4", "a b.mp4", "http:x.mp4", "q\"'; ls.mp4",
                                        "%d.mp4", "no-end"};
    h3_mux_opt o = h3_mux_default(SIDE, SIDE, 1);
    (void)state;

    o.sample_rate = 0;
    mkdir(at("names"), 0777);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        h3_mux *m;
        assert_ok(h3_mux_open(&m, at("names/%s", names[i]), &o));
        write_frames(m, 1);
        assert_ok(h3_mux_finish(&m));
        assert_true(h3_path_exists(at("names/%s", names[i])));
        assert_int_equal(count_files(at("names")), (int)i + 1);
    }
}

/** A disk that fills up: a limit on the file size refuses the write as a full disk does. */
static void test_mp4_disk_full(void **state)
{
    struct rlimit old, low;
    h3_mux_opt o = h3_mux_default(SIDE, SIDE, 20);
    uint8_t *rgb = noise(SIDE * SIDE * 3, 1);
    h3_mux *m;
    (void)state;

    mkdir(at("full"), 0777);
    o.sample_rate = 0;
    assert_ok(h3_mux_open(&m, at("full/v.mp4"), &o));
    for (int i = 0; i < 20; i++)
        assert_ok(h3_mux_frame(m, rgb));
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    low = old;
    low.rlim_cur = 4096;
    setrlimit(RLIMIT_FSIZE, &low);
    const h3_status st = h3_mux_finish(&m);
    const h3_status st_png = h3_frame_save(at("full/f.ppm"), rgb, SIDE, SIDE, H3_FRAMES_PPM);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(st, H3_E_IO);
    assert_int_equal(st_png, H3_E_IO);
    assert_non_null(strstr(h3_error(), "full"));
    assert_int_equal(count_files(at("full")), 0); // nothing under any name
    free(rgb);
}

/* ---- folders, WAV ---- */

static void test_frame_folder(void **state)
{
    static const h3_frame_format formats[] = {H3_FRAMES_PNG, H3_FRAMES_PPM};
    (void)state;

    for (int k = 0; k < 2; k++) {
        const char *dir = at("frames%d", k);
        uint8_t *rgb = noise(3 * 33 * 17 * 3, 7);
        h3_frames *f;
        h3_clip clip;

        assert_ok(h3_frames_open(&f, dir, 33, 17, formats[k]));
        for (int i = 0; i < 3; i++)
            assert_ok(h3_frames_write(f, rgb + i * 33 * 17 * 3));
        h3_frames_close(&f, true);
        assert_int_equal(count_files(dir), 3);
        assert_fails(H3_E_ARG, "3 frames already", h3_frames_open(&f, dir, 33, 17, formats[k]));
        assert_ok(h3_clip_load_folder(&clip, dir, 24.0, 100, 0, 0, NULL));
        assert_int_equal(clip.n, 3);
        assert_memory_equal(clip.rgb, rgb, 3 * 33 * 17 * 3);
        h3_clip_free(&clip);
        assert_ok(h3_clip_load_folder(&clip, dir, 8.0, 100, 0, 0, NULL)); // each held three times
        assert_int_equal(clip.n, 9);
        assert_memory_equal(clip.rgb + 8 * 33 * 17 * 3, rgb + 2 * 33 * 17 * 3, 33 * 17 * 3);
        h3_clip_free(&clip);
        unlink(at("frames%d/frame_00001.%s", k, k ? "ppm" : "png"));
        assert_fails(H3_E_FORMAT, "frame 1 is missing",
                     h3_clip_load_folder(&clip, dir, 24.0, 100, 0, 0, NULL));
        free(rgb);
    }
    h3_frames *f;
    uint8_t one[3] = {1, 2, 3};
    assert_ok(h3_frames_open(&f, at("dropped"), 1, 1, H3_FRAMES_PNG));
    assert_ok(h3_frames_write(f, one));
    h3_frames_close(&f, false);
    assert_false(h3_path_exists(at("dropped")));
    assert_fails(H3_E_MISSING, "folder above", h3_frames_open(&f, at("x/y"), 1, 1, H3_FRAMES_PNG));
}

static void test_wav_and_pcm(void **state)
{
    const float pcm[2 * 6] = {0.0f, 1.0f,  -1.0f,           2.0f,  0.99999f, NAN,
                              0.5f, -0.5f, 1.9999f / 32767, -3.0f, 0.0f,     0.25f};
    static const int16_t want[2 * 6] = {0,     16383,  32767, -16383, -32767, 1,
                                        32767, -32767, 32766, 0,      0,      8191};
    int16_t got[2 * 6];
    h3_sound s;
    (void)state;

    h3_pcm16(got, pcm, 6, 6);
    assert_memory_equal(got, want, sizeof want);
    assert_ok(h3_wav_write(at("s.wav"), pcm, 6, 6, 32000));
    assert_ok(h3_sound_load(&s, h3_media_file(at("s.wav")), 0.0, NULL));
    assert_int_equal(s.n, 6);
    for (int i = 0; i < 6; i++)
        for (int c = 0; c < 2; c++)
            assert_true(s.pcm[c * 6 + i] == (float)want[2 * i + c] / 32768.0f);
    h3_sound_free(&s);
    assert_fails(H3_E_MISSING, "nowhere", h3_wav_write(at("nowhere/s.wav"), pcm, 6, 6, 32000));
}

static void test_mux_folder(void **state)
{
    h3_mux_opt o = h3_mux_default(0, 0, 0);
    float *pcm = tones(20000);
    uint8_t rgb[SIDE * SIDE * 3];
    h3_frames *f;
    h3_media_info info;
    (void)state;

    assert_ok(h3_frames_open(&f, at("folder"), SIDE, SIDE, H3_FRAMES_PNG));
    for (int i = 0; i < 15; i++) {
        memset(rgb, gray_of(i), sizeof rgb);
        assert_ok(h3_frames_write(f, rgb));
    }
    h3_frames_close(&f, true);
    assert_ok(h3_wav_write(at("folder.wav"), pcm, 20000, 20000, 48000));
    assert_ok(h3_mux_folder(at("folder.mp4"), at("folder"), at("folder.wav"), &o));
    assert_ok(h3_media_probe(&info, h3_media_file(at("folder.mp4"))));
    assert_int_equal(info.kind, H3_MEDIA_VIDEO);
    assert_int_equal(info.n_frames, 15);
    assert_true(info.fps == 24.0 && info.has_audio);
    assert_int_equal(info.sample_rate, 32000);
    assert_true(fabs(info.audio_duration - 20000.0 / 48000.0) < 1e-4);
    assert_ok(h3_mux_folder(at("folder.mp4"), at("folder"), NULL, &o));
    assert_ok(h3_media_probe(&info, h3_media_file(at("folder.mp4"))));
    assert_false(info.has_audio);
    assert_fails(H3_E_MISSING, "no frames", h3_mux_folder(at("f.mp4"), work, NULL, &o));
    free(pcm);
}

/* ---- pictures ---- */

static void put16(uint8_t *p, unsigned v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

/** A big-endian EXIF block that holds one tag. */
static void make_exif(uint8_t tiff[26], int orientation)
{
    static const uint8_t head[26] = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1};
    memcpy(tiff, head, 26);
    put16(tiff + 18, (unsigned)orientation);
}

/** JPEG bytes of a picture, by libav. */
static uint8_t *make_jpeg(const uint8_t *rgb, int w, int h, size_t *size)
{
    AVCodecContext *c = avcodec_alloc_context3(avcodec_find_encoder(AV_CODEC_ID_MJPEG));
    AVFrame *f = av_frame_alloc();
    AVPacket *p = av_packet_alloc();
    uint8_t *out;

    c->width = f->width = w;
    c->height = f->height = h;
    f->format = c->pix_fmt = AV_PIX_FMT_YUVJ444P;
    c->time_base = (AVRational){1, 1};
    c->flags |= AV_CODEC_FLAG_QSCALE;
    c->global_quality = FF_QP2LAMBDA;
    f->quality = FF_QP2LAMBDA;
    assert_int_equal(avcodec_open2(c, NULL, NULL), 0);
    assert_int_equal(av_frame_get_buffer(f, 0), 0);
    for (int k = 0; k < 3; k++) // gray from the green channel is enough
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++)
                f->data[k][y * f->linesize[k] + x] = k ? 128 : rgb[(y * w + x) * 3 + 1];
    assert_int_equal(avcodec_send_frame(c, f), 0);
    assert_int_equal(avcodec_receive_packet(c, p), 0);
    out = malloc((size_t)p->size);
    memcpy(out, p->data, (size_t)p->size);
    *size = (size_t)p->size;
    av_packet_free(&p);
    av_frame_free(&f);
    avcodec_free_context(&c);
    return out;
}

/** `upright` as it is stored when a viewer has to apply `o`. */
static void store_turned(uint8_t *out, const uint8_t *upright, int w, int h, int o)
{
    const bool is_swapped = o >= 5;
    const int sw = is_swapped ? h : w, sh = is_swapped ? w : h;

    for (int y = 0; y < sh; y++)
        for (int x = 0; x < sw; x++) {
            int ux = is_swapped ? y : x,
                uy = is_swapped ? x : y; // transpose, then by the definition
            if (o == 2 || o == 3 || o == 6 || o == 7) ux = w - 1 - ux;
            if (o == 3 || o == 4 || o == 7 || o == 8) uy = h - 1 - uy;
            memcpy(out + (y * sw + x) * 3, upright + (uy * w + ux) * 3, 3);
        }
}

/** Inserts `chunk` of a PNG after its header (33 bytes in). */
static uint8_t *png_with_chunk(const uint8_t *png, size_t n, const char type[4],
                               const uint8_t *body, size_t len, size_t *out_n)
{
    uint8_t *out = malloc(n + len + 12), *p = out + 33;
    uint32_t crc;

    memcpy(out, png, 33);
    memset(p, 0, 4);
    p[3] = (uint8_t)len;
    memcpy(p + 4, type, 4);
    memcpy(p + 8, body, len);
    crc = ~av_crc(av_crc_get_table(AV_CRC_32_IEEE_LE), ~0u, p + 4, len + 4);
    for (size_t i = 0; i < 4; i++)
        p[8 + len + i] = (uint8_t)(crc >> (24 - 8 * i));
    memcpy(p + 12 + len, png + 33, n - 33);
    *out_n = n + len + 12;
    return out;
}

static void test_exif(void **state)
{
    enum { W = 24, H = 16 };
    uint8_t upright[W * H * 3], stored[W * H * 3], tiff[26];
    (void)state;

    for (int i = 0; i < W * H; i++) // a ramp: no orientation looks like another
        memset(upright + 3 * i, 20 + i / W * 9 + i % W * 3, 3);
    for (int o = 1; o <= 8; o++) {
        const int w = o >= 5 ? H : W, h = o >= 5 ? W : H;
        h3_image img;
        h3_media_info info;
        size_t n, n2;

        store_turned(stored, upright, W, H, o);
        make_exif(tiff, o);
        assert_ok(h3_frame_save(at("o.png"), stored, w, h, H3_FRAMES_PNG));
        uint8_t *png = read_file(at("o.png"), &n),
                *with = png_with_chunk(png, n, "eXIf", tiff, 26, &n2);
        assert_ok(h3_image_load(&img, h3_media_bytes("o.png", with, n2)));
        assert_int_equal(img.width, W);
        assert_int_equal(img.height, H);
        assert_memory_equal(img.rgb, upright, sizeof upright);
        h3_image_free(&img);
        assert_ok(h3_media_probe(&info, h3_media_bytes("o.png", with, n2)));
        assert_true(info.kind == H3_MEDIA_IMAGE && info.width == W && info.height == H);
        free(png);
        free(with);

        uint8_t *jpeg = make_jpeg(stored, w, h, &n), *exif = malloc(n + 36);
        memcpy(exif, jpeg, 2);
        memcpy(exif + 2,
               "\xFF\xE1\0\x22"
               "Exif\0\0",
               10);
        memcpy(exif + 12, tiff, 26);
        memcpy(exif + 38, jpeg + 2, n - 2);
        assert_ok(h3_image_load(&img, h3_media_bytes("o.jpg", exif, n + 36)));
        assert_true(img.width == W && img.height == H);
        for (size_t i = 0; i < sizeof upright; i++)
            assert_true(abs(img.rgb[i] - upright[i]) <= 3);
        h3_image_free(&img);
        free(jpeg);
        free(exif);
    }
}

static void test_simple_formats(void **state)
{
    static const uint8_t pgm16[] = "P5\n# c\n2 1\n65535\n\x80\xFF\x01\x02";
    static const uint8_t pbm[] = "P4 3 1\n\xA0", ppm[] = "P6 1 1 255\n\x01\x02\x03";
    static const uint8_t bmp[58] = {'B', 'M', 58, 0,  0, 0, 0,  0, 0,         0,  54,
                                    0,   0,   0,  40, 0, 0, 0,  1, 0,         0,  0,
                                    1,   0,   0,  0,  1, 0, 24, 0, [54] = 30, 20, 10};
    h3_image img;
    (void)state;

    assert_ok(h3_image_load(&img, h3_media_bytes("x.pgm", pgm16, sizeof pgm16 - 1)));
    assert_true(img.width == 2 && img.rgb[0] == 0x80 && img.rgb[3] == 0x01); // 16 bits: the upper 8
    h3_image_free(&img);
    assert_ok(h3_image_load(&img, h3_media_bytes("x.pbm", pbm, sizeof pbm - 1)));
    assert_true(img.rgb[0] == 0 && img.rgb[3] == 255 && img.rgb[6] == 0);
    h3_image_free(&img);
    assert_ok(h3_image_load(&img, h3_media_bytes("x.ppm", ppm, sizeof ppm - 1)));
    assert_true(img.rgb[0] == 1 && img.rgb[1] == 2 && img.rgb[2] == 3);
    h3_image_free(&img);
    assert_ok(h3_image_load(&img, h3_media_bytes("x.bmp", bmp, sizeof bmp)));
    assert_true(img.rgb[0] == 10 && img.rgb[1] == 20 && img.rgb[2] == 30);
    h3_image_free(&img);
}

/** Alpha is dropped, not blended: a see-through red stays red. */
static void test_alpha_is_dropped(void **state)
{
    h3_image img;
    (void)state;

    if (!has_ffmpeg()) skip();
    assert_true(ffmpeg(
        "-f lavfi -i color=red:s=8x8 -vf format=rgba,colorchannelmixer=aa=0.2 -frames:v 1 a.png"));
    assert_ok(h3_image_load(&img, h3_media_file(at("a.png"))));
    assert_true(img.rgb[0] >= 253 && img.rgb[1] <= 1 && img.rgb[2] <= 1);
    h3_image_free(&img);
}

static void test_bad_pictures(void **state)
{
    static const uint8_t bomb[] = "\x89PNG\r\n\x1A\n\0\0\0\rIHDR\0\1\0\0\0\1\0\0\x08\x02\0\0\0CRC!";
    static const char text[] = "this is no picture, whatever its name says";
    uint8_t *rgb = noise(40 * 30 * 3, 3), *jpeg, *png, *copy;
    size_t n_jpeg, n_png;
    h3_media_info info;
    h3_image img;
    (void)state;

    write_file(at("text.png"), text, sizeof text);
    assert_fails(H3_E_FORMAT, "not a picture", h3_image_load(&img, h3_media_file(at("text.png"))));
    assert_fails(H3_E_FORMAT, "text.png", h3_media_probe(&info, h3_media_file(at("text.png"))));
    write_text(at("empty.png"), "");
    assert_fails(H3_E_FORMAT, "empty", h3_image_load(&img, h3_media_file(at("empty.png"))));
    assert_fails(H3_E_FORMAT, "empty", h3_media_probe(&info, h3_media_file(at("empty.png"))));
    assert_fails(H3_E_MISSING, "none.png", h3_image_load(&img, h3_media_file(at("none.png"))));
    assert_fails(H3_E_FORMAT, "65536x65536",
                 h3_image_load(&img, h3_media_bytes("b", bomb, sizeof bomb)));
    assert_fails(H3_E_FORMAT, "65536x65536",
                 h3_media_probe(&info, h3_media_bytes("b", bomb, sizeof bomb)));
    assert_fails(H3_E_UNSUPPORTED, "HEIC",
                 h3_image_load(&img, h3_media_bytes("h",
                                                    "\0\0\0\x18"
                                                    "ftypheic\0\0\0\0",
                                                    16)));

    assert_ok(h3_frame_save(at("cut.png"), rgb, 40, 30, H3_FRAMES_PNG));
    png = read_file(at("cut.png"), &n_png);
    jpeg = make_jpeg(rgb, 40, 30, &n_jpeg);
    for (size_t i = 1; i < 16; i++) { // cut off anywhere
        assert_int_not_equal(h3_image_load(&img, h3_media_bytes("cut", png, n_png * i / 16)),
                             H3_OK);
        assert_int_not_equal(h3_image_load(&img, h3_media_bytes("cut", jpeg, n_jpeg * i / 16)),
                             H3_OK);
        assert_null(img.rgb);
    }
    copy = malloc(n_jpeg > n_png ? n_jpeg : n_png);
    for (unsigned i = 0; i < 600; i++) { // damaged: any outcome but a crash
        const uint8_t *from = i % 2 ? png : jpeg;
        const size_t n = i % 2 ? n_png : n_jpeg;
        memcpy(copy, from, n);
        for (unsigned k = 0; k < 3; k++)
            copy[(i * 2654435761u + k * 40503u) % n] ^= (uint8_t)(1u << (i + k) % 8);
        if (h3_image_load(&img, h3_media_bytes("damaged", copy, n)) == H3_OK) h3_image_free(&img);
    }
    free(copy);
    free(png);
    free(jpeg);
    free(rgb);
}

/* ---- clips by ffmpeg ---- */

#define COUNTER    \
    "-f lavfi -i " \
    "\"color=black:s=%dx%d:r=%s,format=yuv444p,geq=lum='16+mod(N,30)*7':cb=128:cr=128\""

/** Which source frame (mod 30) is shown. */
static int number_of(const h3_clip *c, int64_t i)
{
    const size_t bytes = (size_t)c->width * (size_t)c->height * 3;
    const uint8_t v = c->rgb[(size_t)i * bytes + bytes / 2 / 3 * 3 + 1];
    return (int)lrint(v * 219.0 / 255.0 / 7.0);
}

/** Frames of a constant rate must be those of the reference's slots. */
static void check_slots(const h3_clip *c, double fps, int64_t n_source, int64_t limit)
{
    int64_t out = 0;

    for (int64_t i = 0; i < n_source; i++) {
        const int64_t a = (int64_t)floor((double)i * (24.0 / fps) + 0.5),
                      b = (int64_t)floor((double)(i + 1) * (24.0 / fps) + 0.5);
        for (int64_t s = a; s < b && out < limit; s++, out++) {
            assert_true(out < c->n);
            if (number_of(c, out) != i % 30)
                fail_msg("slot %lld shows frame %d, expected %lld (mod 30)", (long long)out,
                         number_of(c, out), (long long)i);
        }
    }
    assert_int_equal(c->n, out);
}

static void test_clip_rates(void **state)
{
    static const struct {
        const char *rate;
        double fps;
    } rates[] = {{"24", 24.0},
                 {"24000/1001", 24000.0 / 1001.0},
                 {"30000/1001", 30000.0 / 1001.0},
                 {"60", 60.0},
                 {"25", 25.0},
                 {"12", 12.0},
                 {"10", 10.0}};
    static const char *const ends[] = {"mp4", "mkv"}; // mkv counts milliseconds
    (void)state;

    if (!has_ffmpeg()) skip();
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        for (int k = 0; k < 2; k++) {
            h3_clip c;
            assert_true(ffmpeg(COUNTER " -frames:v 75 -c:v libx264 -crf 8 -pix_fmt yuv420p rate.%s",
                               64, 48, rates[i].rate, ends[k]));
            assert_ok(h3_clip_load(&c, h3_media_file(at("rate.%s", ends[k])), 1000, 0, 0, NULL));
            assert_false(c.is_variable);
            assert_true(fabs(c.fps - rates[i].fps) < 1e-9);
            check_slots(&c, rates[i].fps, 75, 1000);
            h3_clip_free(&c);
            assert_ok(h3_clip_load(&c, h3_media_file(at("rate.%s", ends[k])), 22, 32, 96, NULL));
            assert_true(c.width == 32 && c.height == 96); // resized on the way
            check_slots(&c, rates[i].fps, 75, 22);
            h3_clip_free(&c);
        }
}

static void test_clip_codecs(void **state)
{
    static const struct {
        const char *args, *end;
        int w, h;
    } codecs[] = {
        {"-c:v libx264 -pix_fmt yuv420p -bf 3", "mp4", 64, 48},
        {"-c:v libx264 -pix_fmt yuv444p", "mp4", 85, 47},
        {"-c:v libx264 -pix_fmt yuv420p10le", "mp4", 64, 48},
        {"-c:v libx265 -x265-params log-level=none -pix_fmt yuv420p", "mp4", 64, 48},
        {"-c:v libx265 -x265-params log-level=none -pix_fmt yuv420p10le", "mp4", 64, 48},
        {"-c:v libvpx-vp9 -pix_fmt yuv420p -deadline realtime", "webm", 85, 47},
        {"-c:v libaom-av1 -cpu-used 8 -pix_fmt yuv420p", "mp4", 64, 48},
        {"-c:v libsvtav1 -preset 12 -pix_fmt yuv420p", "mp4", 64, 64},
        {"-c:v mpeg4 -q:v 2 -pix_fmt yuv420p", "avi", 64, 48},
    };
    (void)state;

    if (!has_ffmpeg()) skip();
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        h3_clip c;
        h3_media_info info;
        if (!ffmpeg(COUNTER " -frames:v 26 %s codec.%s", codecs[i].w, codecs[i].h, "24",
                    codecs[i].args, codecs[i].end)) {
            print_message("ffmpeg cannot write %s here\n", codecs[i].args);
            continue;
        }
        assert_ok(h3_media_probe(&info, h3_media_file(at("codec.%s", codecs[i].end))));
        assert_int_equal(info.kind, H3_MEDIA_VIDEO);
        assert_true(info.width == codecs[i].w && info.height == codecs[i].h && !info.has_audio);
        assert_true(fabs(info.fps - 24.0) < 1e-6);
        assert_ok(h3_clip_load(&c, h3_media_file(at("codec.%s", codecs[i].end)), 1000, 0, 0, NULL));
        check_slots(&c, 24.0, 26, 1000);
        h3_clip_free(&c);
    }
}

/** Frame 10 onwards comes at half the rate: held frames, by their times. */
static void test_clip_variable(void **state)
{
    h3_clip c;
    (void)state;

    if (!has_ffmpeg()) skip();
    assert_true(ffmpeg(
        COUNTER
        " -frames:v 20 -vf \"settb=1/48,setpts='if(lt(N,10),2*N,20+4*(N-10))'\" -vsync passthrough "
        "-c:v libx264 -crf 8 -pix_fmt yuv420p -video_track_timescale 48 vfr.mp4",
        64, 48, "24"));
    assert_ok(h3_clip_load(&c, h3_media_file(at("vfr.mp4")), 1000, 0, 0, NULL));
    assert_true(c.is_variable);
    assert_int_equal(c.n_source, 20);
    assert_int_equal(c.n, 29); // the container says that the last frame lasts one tick
    for (int64_t i = 0; i < c.n; i++)
        assert_int_equal(number_of(&c, i), i < 10 ? i : 10 + (i - 10) / 2);
    h3_clip_free(&c);
}

static void test_clip_odd_ones(void **state)
{
    h3_clip c;
    h3_sound s;
    h3_media_info info;
    h3_cancel_flag stop = {false};
    (void)state;

    if (!has_ffmpeg()) skip();
    assert_true(ffmpeg(COUNTER " -frames:v 1 -c:v libx264 -pix_fmt yuv420p one.mp4", 64, 48, "30"));
    assert_ok(h3_clip_load(&c, h3_media_file(at("one.mp4")), 124, 0, 0, NULL));
    assert_int_equal(c.n, 1);
    h3_clip_free(&c);
    assert_fails(H3_E_MISSING, "no sound",
                 h3_sound_load(&s, h3_media_file(at("one.mp4")), 0.0, NULL));

    // the upper left corner is white; turned by 90 degrees it is elsewhere
    assert_true(
        ffmpeg("-f lavfi -i color=black:s=64x32:r=24 -vf drawbox=0:0:16:16:white:fill -frames:v 5 "
               "-c:v libx264 -crf 4 -pix_fmt yuv420p -metadata:s:v rotate=90 turned.mp4"));
    assert_ok(h3_media_probe(&info, h3_media_file(at("turned.mp4"))));
    if (info.width == 32) { // newer programs ignore this way of setting it
        assert_ok(h3_clip_load(&c, h3_media_file(at("turned.mp4")), 5, 0, 0, NULL));
        assert_true(c.width == 32 && c.height == 64);
        h3_image up = {0};
        assert_true(ffmpeg("-i turned.mp4 -frames:v 1 turned.png")); // ffmpeg turns it upright, too
        assert_ok(h3_image_load(&up, h3_media_file(at("turned.png"))));
        assert_true(up.width == 32 && up.height == 64);
        for (int y = 4; y < 64; y += 8)
            for (int x = 4; x < 32; x += 8)
                assert_true(abs(c.rgb[(y * 32 + x) * 3] - up.rgb[(y * 32 + x) * 3]) < 8);
        h3_image_free(&up);
        h3_clip_free(&c);
    }
    atomic_store(&stop.stop, true);
    assert_fails(H3_E_CANCELLED, "cancelled",
                 h3_clip_load(&c, h3_media_file(at("turned.mp4")), 5, 0, 0, &stop));
}

/** Only the beginning of a long film is read. */
static void test_clip_of_a_film(void **state)
{
    uint8_t *d;
    size_t n;
    h3_clip c;
    (void)state;

    if (!has_ffmpeg()) skip();
    assert_true(ffmpeg(COUNTER
                       " -frames:v 2400 -c:v libx264 -preset ultrafast -pix_fmt yuv420p film.mkv",
                       64, 48, "24"));
    d = read_file(at("film.mkv"), &n);
    memset(d + n / 2, 0xA5, n / 2); // the second half is garbage that nobody may look at
    write_file(at("film.mkv"), d, n);
    free(d);
    assert_ok(h3_clip_load(&c, h3_media_file(at("film.mkv")), 124, 0, 0, NULL));
    check_slots(&c, 24.0, 2400, 124);
    assert_true(c.n_source < 400);
    h3_clip_free(&c);
}

static void test_bad_clips(void **state)
{
    uint8_t *d, *copy;
    size_t n;
    h3_clip c;
    h3_sound s;
    h3_media_info info;
    (void)state;

    write_video(at("whole.mp4"), 40, 50000, NULL);
    d = read_file(at("whole.mp4"), &n);
    for (size_t i = 1; i < 12; i++)
        assert_int_not_equal(
            h3_clip_load(&c, h3_media_bytes("cut.mp4", d, n * i / 12), 100, 0, 0, NULL), H3_OK);
    copy = malloc(n);
    for (unsigned i = 0; i < 60; i++) { // damaged: any outcome but a crash
        memcpy(copy, d, n);
        for (unsigned k = 0; k < 4; k++)
            copy[(i * 2654435761u + k * 7919u) % (i % 2 ? n : 2000)] ^=
                (uint8_t)(1u << (i + k) % 8);
        if (h3_clip_load(&c, h3_media_bytes("damaged", copy, n), 100, 0, 0, NULL) == H3_OK)
            h3_clip_free(&c);
        if (h3_sound_load(&s, h3_media_bytes("damaged", copy, n), 0.0, NULL) == H3_OK)
            h3_sound_free(&s);
    }
    free(copy);
    free(d);
    // a playlist names other files: never opened
    write_text(at("list.m3u8"), "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nwhole.mp4\n");
    assert_fails(H3_E_FORMAT, "list.m3u8", h3_media_probe(&info, h3_media_file(at("list.m3u8"))));
    write_text(at("list.txt"), "ffconcat version 1.0\nfile whole.mp4\n");
    assert_fails(H3_E_FORMAT, "list.txt",
                 h3_clip_load(&c, h3_media_file(at("list.txt")), 10, 0, 0, NULL));
}

/* ---- sound by ffmpeg ---- */

static void test_sounds(void **state)
{
    static const struct {
        const char *args, *end;
        double limit;  // of the left channel's error
        bool is_exact; // sample count
    } kinds[] = {{"-c:a pcm_s16le", "wav", 1e-4, true},
                 {"-c:a pcm_f32le", "wav", 1e-6, true},
                 {"-c:a pcm_s24le", "wav", 1e-6, true},
                 {"-c:a flac", "flac", 1e-4, true},
                 {"-c:a aac -b:a 192k", "m4a", 0.02, true},
                 {"-c:a libmp3lame -b:a 192k", "mp3", 0.02, true},
                 {"-c:a libvorbis -q:a 8", "ogg", 0.02, true},
                 {"-c:a libopus -ar 48000", "ogg", 0.0, false}};
    float *pcm = tones(32000);
    (void)state;

    if (!has_ffmpeg()) skip();
    FILE *f = fopen(at("tone.raw"), "wb");
    for (int i = 0; i < 32000; i++)
        for (int c = 0; c < 2; c++)
            fwrite(pcm + c * 32000 + i, 4, 1, f);
    fclose(f);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        h3_sound s;
        h3_media_info info;
        if (!ffmpeg("-f f32le -ar 32000 -ac 2 -i tone.raw %s t.%s", kinds[i].args, kinds[i].end)) {
            print_message("ffmpeg cannot write %s here\n", kinds[i].args);
            continue;
        }
        assert_ok(h3_media_probe(&info, h3_media_file(at("t.%s", kinds[i].end))));
        assert_true(info.kind == H3_MEDIA_AUDIO && info.channels == 2);
        assert_true(fabs(info.duration - 1.0) < 0.1);
        assert_ok(h3_sound_load(&s, h3_media_file(at("t.%s", kinds[i].end)), 0.0, NULL));
        if (kinds[i].is_exact && s.n != 32000)
            fail_msg("%s: %lld samples", kinds[i].args, (long long)s.n);
        if (kinds[i].limit > 0.0) {
            assert_true(rms_error(s.pcm, pcm, s.n < 32000 ? s.n : 32000) < kinds[i].limit);
            assert_true(rms_error(s.pcm + s.n, pcm, 32000) > 0.3);
        }
        h3_sound_free(&s);
        assert_ok(h3_sound_load(&s, h3_media_file(at("t.%s", kinds[i].end)), 11.0 / 24.0, NULL));
        assert_int_equal(s.n, (int64_t)(11.0 / 24.0 * s.sample_rate)); // cut at its own rate
        h3_sound_free(&s);
    }
    free(pcm);
}

static void test_channels_and_rates(void **state)
{
    h3_sound s;
    (void)state;

    if (!has_ffmpeg()) skip();
    assert_true(ffmpeg("-f lavfi -i sine=1000:r=44100:d=0.5 -ac 1 mono.wav"));
    assert_ok(h3_sound_load(&s, h3_media_file(at("mono.wav")), 0.0, NULL));
    assert_true(s.n == 22050 && s.n_channels == 1 && s.sample_rate == 44100);
    assert_memory_equal(s.pcm, s.pcm + s.n, (size_t)s.n * 4); // doubled, not scaled
    double top = 0.0;
    for (int64_t i = 0; i < s.n; i++)
        top = fmax(top, fabs((double)s.pcm[i]));
    assert_true(fabs(top - 0.125) < 1e-3); // the level of the generator
    assert_ok(h3_sound_resample(&s, 32000));
    assert_true(s.n == 16000 && s.sample_rate == 32000);
    h3_sound_free(&s);

    assert_true(ffmpeg(
        "-f lavfi -i \"aevalsrc=0.5*sin(2000*t)|0|0|0|0|0:c=5.1:s=48000:d=0.2\" surround.wav"));
    assert_ok(h3_sound_load(&s, h3_media_file(at("surround.wav")), 0.0, NULL));
    assert_int_equal(s.n_channels, 6);
    double left = 0.0, right = 0.0;
    for (int64_t i = 0; i < s.n; i++) {
        left += fabs((double)s.pcm[i]);
        right += fabs((double)s.pcm[s.n + i]);
    }
    assert_true(left > 100.0 * right && left > 0.0); // front left stays left
    h3_sound_free(&s);
}

/** Sound that begins half a second after the picture is preceded by silence. */
static void test_track_offset(void **state)
{
    h3_sound s;
    h3_media_info info;
    (void)state;

    if (!has_ffmpeg()) skip();
    assert_true(ffmpeg(
        "-f lavfi -i color=black:s=32x32:r=24:d=2 -itsoffset 0.5 -f lavfi -i sine=1000:r=32000:d=1 "
        "-c:v libx264 -pix_fmt yuv420p -c:a pcm_s16le late.mkv"));
    assert_ok(h3_media_probe(&info, h3_media_file(at("late.mkv"))));
    assert_true(info.kind == H3_MEDIA_VIDEO && info.has_audio && info.channels == 1);
    assert_ok(h3_sound_load(&s, h3_media_file(at("late.mkv")), 0.0, NULL));
    assert_true(llabs(s.n - 48000) < 64);
    for (int64_t i = 0; i < 15900; i++)
        assert_true(s.pcm[i] == 0.0f);
    double loud = 0.0;
    for (int64_t i = 16100; i < 17000; i++)
        loud = fmax(loud, fabs((double)s.pcm[i]));
    assert_true(loud > 0.1);
    h3_sound_free(&s);

    // sound that begins half a second before the picture is cut: what remains starts with the tone
    assert_true(
        ffmpeg("-itsoffset 0.5 -f lavfi -i color=black:s=32x32:r=24:d=1 -f lavfi -i "
               "\"aevalsrc=0.5*sin(6000*t)*gte(t\\,0.5):s=32000:d=1.5\" -c:v libx264 -pix_fmt "
               "yuv420p -c:a pcm_s16le early.mkv"));
    assert_ok(h3_sound_load(&s, h3_media_file(at("early.mkv")), 0.0, NULL));
    assert_true(llabs(s.n - 32000) < 64);
    loud = 0.0;
    for (int64_t i = 64; i < 128; i++)
        loud = fmax(loud, fabs((double)s.pcm[i]));
    assert_true(loud > 0.4);
    h3_sound_free(&s);
}

static void test_bad_sounds(void **state)
{
    uint8_t wav[44 + 400] = "RIFF\xFF\xFF\xFF\x7FWAVEfmt "
                            "\x10\0\0\0\1\0\2\0\0\x7D\0\0\0\xF4\1\0\4\0\x10\0data\0\0\0\x7F";
    h3_sound s;
    (void)state;

    // a length far beyond the file: what is there is read, nothing is allocated for the rest
    if (h3_sound_load(&s, h3_media_bytes("long.wav", wav, sizeof wav), 0.0, NULL) == H3_OK) {
        assert_true(s.n <= 100);
        h3_sound_free(&s);
    }
    assert_fails(H3_E_FORMAT, "x.wav",
                 h3_sound_load(&s, h3_media_bytes("x.wav", "RIFFxxxxWAVE", 12), 0.0, NULL));
    assert_fails(H3_E_FORMAT, "empty",
                 h3_sound_load(&s, h3_media_bytes("x.wav", "", 0), 0.0, NULL));
    assert_int_equal(h3_resample_length(3, 0, 32000), -1);
    float x = 1.0f;
    assert_fails(H3_E_ARG, "rates", h3_resample(&x, &x, 1, -5, 32000));
    for (int rate = 7999; rate < 200000; rate += 30011) { // no common divisor to speak of
        const int64_t n = h3_resample_length(1000, rate, 32000);
        float in[1000], *out = malloc((size_t)n * sizeof *out);
        for (int i = 0; i < 1000; i++)
            in[i] = 1.0f;
        assert_ok(h3_resample(out, in, 1000, rate, 32000));
        assert_true(fabsf(out[n / 2] - 1.0f) < 0.01f); // constant stays constant
        free(out);
    }
}

/* ---- sizes and rows ---- */

static void test_processor_file(void **state)
{
    static const char *const bad[] = {"",
                                      "[]",
                                      "{\"patch_size\": 0}",
                                      "{\"merge_size\": 1e9}",
                                      "{\"image_std\": [0, 1, 1]}",
                                      "{\"image_mean\": [0.5]}",
                                      "{\"size\": {\"shortest_edge\": -4}}",
                                      "{\"size\": {\"shortest_edge\": 10, \"longest_edge\": 5}}",
                                      "{\"patch_size\": \"16\"}"};
    h3_processor p = h3_processor_image_default();
    (void)state;

    write_text(
        at("p.json"),
        "{\"size\": {\"shortest_edge\": 4096, \"longest_edge\": 16384}, \"image_std\": [1, 2, 3]}");
    assert_ok(h3_processor_load(&p, at("p.json")));
    assert_true(p.patch == 16 && p.min_pixels == 4096 && p.max_pixels == 16384 && p.std[2] == 3.0f);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(at("p.json"), bad[i]);
        assert_fails(H3_E_FORMAT,
                     i == 0   ? "p.json is empty"
                     : i == 1 ? "p.json: a JSON list"
                              : "p.json",
                     h3_processor_load(&p, at("p.json")));
    }
    assert_fails(H3_E_MISSING, "q.json", h3_processor_load(&p, at("q.json")));
    assert_int_equal(p.max_pixels, 16384); // untouched by failures
}

static void test_resize_extremes(void **state)
{
    uint8_t one[3] = {9, 99, 199}, out[64 * 32 * 3], *thin = noise(3 * 5000, 5), *big;
    (void)state;

    assert_ok(h3_resize(out, 64, 32, one, 1, 1, H3_LANCZOS));
    for (int i = 0; i < 64 * 32; i++)
        assert_memory_equal(out + 3 * i, one, 3);
    assert_ok(h3_resize(out, 1, 1, thin, 5000, 1, H3_BICUBIC));
    assert_ok(h3_resize(out, 1, 1, thin, 1, 5000, H3_LANCZOS));
    // covering 32x64 with a 1:5000 strip: the enlarged picture (160000 rows) never exists
    assert_ok(h3_resize_crop(out, 64, 32, 160000, 32, 79968, 0, thin, 5000, 1));
    assert_fails(H3_E_ARG, "crop", h3_resize_crop(out, 64, 32, 64, 32, 1, 0, thin, 5000, 1));
    assert_fails(H3_E_ARG, "0x", h3_resize(out, 4, 4, thin, 4, 0, H3_LANCZOS));

    big = malloc(120 * 90 * 3); // a crop is what the whole would have been
    uint8_t *src = noise(50 * 41 * 3, 11), part[40 * 30 * 3];
    assert_ok(h3_resize(big, 120, 90, src, 50, 41, H3_LANCZOS));
    assert_ok(h3_resize_crop(part, 40, 30, 120, 90, 33, 17, src, 50, 41));
    for (int y = 0; y < 40; y++)
        assert_memory_equal(part + y * 30 * 3, big + ((y + 33) * 90 + 17) * 3, 30 * 3);
    free(src);
    free(big);
    free(thin);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(work) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[600];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", work);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mp4_counts),
        cmocka_unit_test(test_mp4_early_sound),
        cmocka_unit_test(test_mp4_counts_by_ffmpeg),
        cmocka_unit_test(test_mp4_layout_and_metadata),
        cmocka_unit_test(test_mp4_colours),
        cmocka_unit_test(test_mp4_refusals),
        cmocka_unit_test(test_mp4_names),
        cmocka_unit_test(test_mp4_disk_full),
        cmocka_unit_test(test_frame_folder),
        cmocka_unit_test(test_wav_and_pcm),
        cmocka_unit_test(test_mux_folder),
        cmocka_unit_test(test_exif),
        cmocka_unit_test(test_simple_formats),
        cmocka_unit_test(test_alpha_is_dropped),
        cmocka_unit_test(test_bad_pictures),
        cmocka_unit_test(test_clip_rates),
        cmocka_unit_test(test_clip_codecs),
        cmocka_unit_test(test_clip_variable),
        cmocka_unit_test(test_clip_odd_ones),
        cmocka_unit_test(test_clip_of_a_film),
        cmocka_unit_test(test_bad_clips),
        cmocka_unit_test(test_sounds),
        cmocka_unit_test(test_channels_and_rates),
        cmocka_unit_test(test_track_offset),
        cmocka_unit_test(test_bad_sounds),
        cmocka_unit_test(test_processor_file),
        cmocka_unit_test(test_resize_extremes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
