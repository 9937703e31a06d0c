/**
 * What the media room writes, read back: MP4, folders of pictures, WAV. Moving pictures carry their
 * frame number as a gray level, so a test knows which frame it was given.
 */
#include <libavcodec/avcodec.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clip.h"
#include "file.h"
#include "frame_files.h"
#include "media_files.h"
#include "probe.h"
#include "resample.h"
#include "sound.h"

/* ---- MP4 ---- */

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
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
