/**
 * Moving pictures that come in, at any rate and in any codec: each slot of 24 frames a second shows
 * the frame that the reference takes. Material this build cannot write itself (H.265, VP9, AV1, odd
 * frame rates) comes from the ffmpeg program; where that is missing these tests say so and are
 * skipped.
 */
#include <math.h>
#include <stdatomic.h>

#include "clip.h"
#include "file.h"
#include "image.h"
#include "media_files.h"
#include "probe.h"
#include "sound.h"

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

/** Colours are those of ffmpeg's own defaults, which the reference's reader leaves alone, whatever
 * the width: the same to the level where both are of one version. */
static void test_clip_colours(void **state)
{
    static const struct {
        const char *codec, *raw;
        int w, h;
    } forms[] = {
        {"-c:v ffv1 -pix_fmt yuv420p", "", 64, 48},
        {"-c:v ffv1 -pix_fmt yuv420p", "", 66, 48}, // not whole vectors
        {"-c:v ffv1 -pix_fmt yuv422p", "", 100, 46},
        {"-c:v ffv1 -pix_fmt yuvj420p", "", 35, 50},
        {"-c:v ffv1 -pix_fmt yuv444p", "", 1280, 720}, // no matrix is tagged
        {"-c:v ffv1 -pix_fmt yuv444p -colorspace bt709", "", 64, 48},
        {"-c:v libx264 -qp 0 -pix_fmt yuv420p -flags +ilme+ildct", "-vf scale=interl=1", 70, 48},
    };
    (void)state;

    if (!has_ffmpeg()) skip();
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        h3_clip c;
        char *want;
        size_t n;
        double sum = 0;

        if (!ffmpeg("-f lavfi -i testsrc2=s=%dx%d:r=24 -frames:v 3 %s colours.mkv", forms[i].w,
                    forms[i].h, forms[i].codec)) {
            print_message("ffmpeg cannot write %s here\n", forms[i].codec);
            continue;
        }
        assert_true(
            ffmpeg("-i colours.mkv %s -f rawvideo -pix_fmt rgb24 colours.rgb", forms[i].raw));
        assert_ok(h3_file_read(&want, &n, at("colours.rgb"), (size_t)1 << 24));
        assert_ok(h3_clip_load(&c, h3_media_file(at("colours.mkv")), 100, 0, 0, NULL));
        assert_int_equal(n, (size_t)c.n * (size_t)c.width * (size_t)c.height * 3);
        for (size_t k = 0; k < n; k++)
            sum += abs(c.rgb[k] - (uint8_t)want[k]);
        if (sum / (double)n > 1.0) // other conversions: 4 and more
            fail_msg("%s at %dx%d: %g levels from ffmpeg", forms[i].codec, forms[i].w, forms[i].h,
                     sum / (double)n);
        free(want);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clip_rates),    cmocka_unit_test(test_clip_codecs),
        cmocka_unit_test(test_clip_colours),  cmocka_unit_test(test_clip_variable),
        cmocka_unit_test(test_clip_odd_ones), cmocka_unit_test(test_clip_of_a_film),
        cmocka_unit_test(test_bad_clips),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
