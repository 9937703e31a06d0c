/** See media_files.h. */
#include "media_files.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>

#include "file.h"

char work[] = "/tmp/h3av-media-XXXXXX";

int make_folder(void **state)
{
    (void)state;
    return mkdtemp(work) ? 0 : -1;
}

int remove_folder(void **state)
{
    char command[600];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", work);
    return system(command);
}

const char *at(const char *fmt, ...)
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

int count_files(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;

    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

bool has_ffmpeg(void)
{
    static int known = -1;
    if (known < 0) known = system("ffmpeg -version >/dev/null 2>&1") == 0;
    if (!known) print_message("no ffmpeg program: this test is skipped\n");
    return known;
}

bool ffmpeg(const char *fmt, ...)
{
    char args[2048], command[2600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(args, sizeof args, fmt, ap);
    va_end(ap);
    snprintf(command, sizeof command, "cd %s && ffmpeg -nostdin -v quiet -y %s", work, args);
    return system(command) == 0;
}

void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

void write_text(const char *path, const char *text)
{
    write_file(path, text, strlen(text));
}

uint8_t *read_file(const char *path, size_t *n)
{
    char *text;
    assert_ok(h3_file_read(&text, n, path, (size_t)1 << 30));
    return (uint8_t *)text;
}

uint8_t *noise(size_t n, unsigned seed)
{
    uint8_t *p = malloc(n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (uint8_t)(seed >> 24);
    }
    return p;
}

int gray_of(int64_t i)
{
    return 20 + (int)(i % 30) * 7;
}

void write_frames(h3_mux *m, int64_t n)
{
    uint8_t rgb[SIDE * SIDE * 3];
    for (int64_t i = 0; i < n; i++) {
        memset(rgb, gray_of(i), sizeof rgb);
        assert_ok(h3_mux_frame(m, rgb));
    }
}

float *tones(int64_t n)
{
    float *p = malloc((size_t)n * 2 * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) {
        p[i] = 0.5f * (float)sin(2.0 * M_PI * 440.0 * (double)i / 32000.0);
        p[n + i] = 0.5f * (float)sin(2.0 * M_PI * 880.0 * (double)i / 32000.0);
    }
    return p;
}

double rms_error(const float *a, const float *b, int64_t n)
{
    double s = 0.0;
    for (int64_t i = 0; i < n; i++)
        s += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(s / (double)n);
}

void write_video(const char *path, int64_t frames, int64_t samples, const h3_mux_opt *with)
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
