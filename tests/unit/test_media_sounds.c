/**
 * Sound that comes in: codecs, channels, rates, its place beside the picture, damage. Material this
 * build cannot write itself (MP3, Opus) comes from the ffmpeg program; where that is missing these
 * tests say so and are skipped.
 */
#include <math.h>
#include <stdio.h>

#include "media_files.h"
#include "probe.h"
#include "resample.h"
#include "sound.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sounds),
        cmocka_unit_test(test_channels_and_rates),
        cmocka_unit_test(test_track_offset),
        cmocka_unit_test(test_bad_sounds),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
