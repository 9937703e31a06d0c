/**
 * Reads what a clip of the toy world shows and prints it as words:
 *
 *     nano_read FRAMES-DIR SOUND.wav   ->   red circle left black steady low 0.61 0.35
 *
 * colour, shape, direction, background, kind of sound, pitch, pan at the start and at the end (0
 * left, 1 right). Frames are binary PPM files in the order of their names, the sound is 16-bit
 * stereo at 32 kHz. tools/nano/measure.py reads more, and more slowly.
 */
#include <dirent.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_FRAMES = 400,
    HOP = 800,
    FIRST_BIN = 3,
    LAST_BIN = 43,
    GRID = 40,
    FINE = 160,
    N_SHAPES = 6,
    N_COLOURS = 9
};

typedef struct colour {
    const char *name;
    double rgb[3];
} colour;

static const colour COLOURS[N_COLOURS] = {
    // the last is an adapter's
    {"red", {0.90, 0.12, 0.12}},    {"orange", {1.00, 0.55, 0.05}}, {"yellow", {0.98, 0.90, 0.10}},
    {"green", {0.10, 0.68, 0.20}},  {"cyan", {0.10, 0.85, 0.90}},   {"blue", {0.12, 0.25, 0.92}},
    {"purple", {0.55, 0.15, 0.80}}, {"pink", {1.00, 0.45, 0.75}},   {"lime", {0.62, 0.98, 0.10}},
};
static const colour BACKGROUNDS[] = {
    {"black", {0.04, 0.04, 0.04}}, {"white", {0.96, 0.96, 0.96}}, {"gray", {0.50, 0.50, 0.50}},
    {"navy", {0.05, 0.07, 0.25}},  {"beige", {0.90, 0.84, 0.70}}, {"brown", {0.35, 0.22, 0.12}},
};

static const char *nearest(const double rgb[3], const colour *table, int n)
{
    int best = 0;
    double least = 1e9;

    for (int i = 0; i < n; i++) {
        double d = 0;
        for (int c = 0; c < 3; c++)
            d += (rgb[c] - table[i].rgb[c]) * (rgb[c] - table[i].rgb[c]);
        if (d < least) {
            least = d;
            best = i;
        }
    }
    return table[best].name;
}

/* Pixels [h, w, 3], malloc'd; NULL when the file is no binary PPM. */
static unsigned char *read_ppm(const char *path, int *w, int *h)
{
    FILE *f = fopen(path, "rb");
    unsigned char *p = NULL;

    if (!f) return NULL;
    if (fscanf(f, "P6 %d %d 255", w, h) == 2 && fgetc(f) != EOF && *w > 0 && *h > 0 && *w <= 4096 &&
        *h <= 4096) {
        const size_t n = (size_t)*w * (size_t)*h * 3;
        p = malloc(n);
        if (p && fread(p, 1, n, f) != n) {
            free(p);
            p = NULL;
        }
    }
    fclose(f);
    return p;
}

/* ---- shapes: masks moved to their centre and scaled to unit area, against those of the six ----
 */

static const char *const SHAPES[N_SHAPES] = {"circle", "square", "triangle",
                                             "star",   "ring",   "cross"};
static bool templates[N_SHAPES][GRID][GRID];

/* Whether (x, y) lies in shape k of radius 1; y points down. */
static bool is_inside(int k, double x, double y)
{
    const double rho = hypot(x, y), ax = fabs(x), ay = fabs(y), sector = 3.14159265358979323846 / 5;

    switch (k) {
    case 0:
        return rho < 1;
    case 1:
        return fmax(ax, ay) < 0.86;
    case 2:
        return fmax(y - 0.12, 0.8660254 * ax - 0.5 * (y - 0.12)) < 0.62;
    case 3: {
        // the edge from the tip (1.2, 0) to the inner corner at 0.52
        const double turn = fmod(atan2(x, -y) + 21 * sector, 2 * sector) - sector;
        const double px = rho * cos(turn), py = fabs(rho * sin(turn));
        const double ex = 0.52 * cos(sector) - 1.2, ey = 0.52 * sin(sector);
        return (px - 1.2) * -ey + py * ex > 0;
    }
    case 4:
        return fabs(rho - 0.76) < 0.26;
    default:
        return (ax < 1 && ay < 0.34) || (ax < 0.34 && ay < 1);
    }
}

/* Mask [h, w] -> out; false when it is empty. */
static bool normalize(const unsigned char *mask, int w, int h, bool out[GRID][GRID])
{
    double cx = 0, cy = 0, n = 0;

    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            if (mask[y * w + x]) {
                cx += x + 0.5;
                cy += y + 0.5;
                n++;
            }
    if (n == 0) return false;
    for (int i = 0; i < GRID; i++)
        for (int k = 0; k < GRID; k++) {
            const double x = cx / n + ((k + 0.5) / GRID * 3.2 - 1.6) * sqrt(n);
            const double y = cy / n + ((i + 0.5) / GRID * 3.2 - 1.6) * sqrt(n);
            out[i][k] = x >= 0 && y >= 0 && x < w && y < h && mask[(int)y * w + (int)x];
        }
    return true;
}

static void make_templates(void)
{
    static unsigned char mask[FINE * FINE];

    for (int s = 0; s < N_SHAPES; s++) {
        for (int i = 0; i < FINE; i++)
            for (int k = 0; k < FINE; k++)
                mask[i * FINE + k] =
                    is_inside(s, (k + 0.5) / FINE * 4 - 2, (i + 0.5) / FINE * 4 - 2);
        (void)normalize(mask, FINE, FINE, templates[s]);
    }
}

/* Adds how much the mask overlaps each shape: common over joint area. */
static void compare_shapes(const unsigned char *mask, int w, int h, double overlap[N_SHAPES])
{
    bool seen[GRID][GRID];

    if (!normalize(mask, w, h, seen)) return;
    for (int s = 0; s < N_SHAPES; s++) {
        int common = 0, joint = 0;
        for (int i = 0; i < GRID; i++)
            for (int k = 0; k < GRID; k++) {
                common += seen[i][k] && templates[s][i][k];
                joint += seen[i][k] || templates[s][i][k];
            }
        overlap[s] += (double)common / joint;
    }
}

typedef struct view {
    double ground[3];  ///< mean of the outermost pixels
    double object[3];  ///< mean of the core of what differs from it
    double x, y, area; ///< centre and share of the picture
} view;

/* `mask` [h, w] becomes what differs from the background. */
static view look(const unsigned char *p, int w, int h, unsigned char *mask)
{
    view v = {{0}, {0}, 0, 0, 0};
    double n = 0, n_core = 0;

    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++) {
            if (x > 3 && x < w - 4 && y > 3 && y < h - 4) continue;
            for (int c = 0; c < 3; c++)
                v.ground[c] += p[(y * w + x) * 3 + c] / 255.0;
            n++;
        }
    for (int c = 0; c < 3; c++)
        v.ground[c] /= n;
    n = 0;
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++) {
            double d = 0;
            for (int c = 0; c < 3; c++) {
                const double e = p[(y * w + x) * 3 + c] / 255.0 - v.ground[c];
                d += e * e;
            }
            mask[y * w + x] = d >= 0.04;
            if (d < 0.04) continue;
            v.x += (x + 0.5) / w;
            v.y += (y + 0.5) / h;
            n++;
        }
    if (n > 0) {
        v.x /= n;
        v.y /= n;
    }
    // The colour is that of the core: edges are blends.
    for (int margin = 3; margin >= 0 && n > 0 && n_core == 0; margin -= 3) {
        for (int y = margin; y < h - margin; y++)
            for (int x = margin; x < w - margin; x++) {
                const unsigned char *m = mask + y * w + x;
                if (!(*m && m[-margin] && m[margin] && m[-margin * w] && m[margin * w])) continue;
                for (int c = 0; c < 3; c++)
                    v.object[c] += p[(y * w + x) * 3 + c] / 255.0;
                n_core++;
            }
        for (int c = 0; c < 3 && n_core > 0; c++)
            v.object[c] /= n_core;
    }
    v.area = n / ((double)w * h);
    return v;
}

static int is_frame(const struct dirent *d)
{
    const size_t n = strlen(d->d_name);
    return n > 4 && strcmp(d->d_name + n - 4, ".ppm") == 0;
}

static int read_picture(const char *folder)
{
    struct dirent **names;
    const int n = scandir(folder, &names, is_frame, alphasort);
    static view seen[MAX_FRAMES];
    double rgb[3] = {0}, ground[3] = {0}, weight = 0, overlap[N_SHAPES] = {0};
    int n_seen = 0, shape = 0;

    if (n < 2 || n > MAX_FRAMES) {
        fprintf(stderr, "%s: %d frames\n", folder, n);
        return 1;
    }
    make_templates();
    for (int i = 0; i < n; i++) {
        char path[4096];
        int w, h;
        unsigned char *p, *mask;
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        free(names[i]);
        p = read_ppm(path, &w, &h);
        if (!p) {
            fprintf(stderr, "%s: no binary PPM\n", path);
            return 1;
        }
        mask = malloc((size_t)w * (size_t)h);
        if (!mask) return 1;
        const view v = look(p, w, h, mask);
        if (v.area >= 0.002) compare_shapes(mask, w, h, overlap);
        free(mask);
        free(p);
        for (int c = 0; c < 3; c++)
            ground[c] += v.ground[c] / n;
        if (v.area < 0.002) continue;
        for (int c = 0; c < 3; c++)
            rgb[c] += v.object[c] * v.area;
        weight += v.area;
        seen[n_seen++] = v;
    }
    free(names);
    if (n_seen < 4) {
        printf("nothing none none %s", nearest(ground, BACKGROUNDS, 6));
        return 0;
    }
    for (int c = 0; c < 3; c++)
        rgb[c] /= weight;
    const double dx = seen[n_seen - 1].x - seen[0].x, dy = seen[n_seen - 1].y - seen[0].y;
    const char *way = fabs(dx) < 0.05 && fabs(dy) < 0.05 ? "still"
                      : fabs(dx) > fabs(dy)              ? (dx > 0 ? "right" : "left")
                                                         : (dy > 0 ? "down" : "up");
    for (int i = 1; i < N_SHAPES; i++)
        if (overlap[i] > overlap[shape]) shape = i;
    printf("%s %s %s %s", nearest(rgb, COLOURS, N_COLOURS), SHAPES[shape], way,
           nearest(ground, BACKGROUNDS, 6));
    return 0;
}

/* Energy of one frame of 25 ms in the bin of k periods. */
static double bin(const int16_t *pcm, int channel, int k)
{
    const double step = 2 * 3.14159265358979323846 * k / HOP;
    double re = 0, im = 0;

    for (int i = 0; i < HOP; i++) {
        const double s = pcm[2 * i + channel] / 32768.0;
        re += s * cos(step * i);
        im += s * sin(step * i);
    }
    return (re * re + im * im) * 4.0 / ((double)HOP * HOP);
}

static int compare_int(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static int read_sound(const char *path)
{
    FILE *f = fopen(path, "rb");
    static int16_t pcm[2 * HOP * 1000];
    static double energy[2][1000];
    static int pitch[1000], order[1000];
    unsigned char head[44];
    double loudest = 0, first = -1, last = -1;
    int n, k = 0, rests = 0;

    if (!f || fread(head, 1, sizeof head, f) != sizeof head || memcmp(head, "RIFF", 4) != 0) {
        fprintf(stderr, "%s: no WAV file\n", path);
        if (f) fclose(f);
        return 1;
    }
    n = (int)(fread(pcm, 4, (size_t)HOP * 1000, f) / HOP);
    fclose(f);
    for (int i = 0; i < n; i++) {
        double most = -1;
        energy[0][i] = energy[1][i] = 0;
        for (int b = FIRST_BIN; b < LAST_BIN; b++) {
            const double l = bin(pcm + 2 * HOP * i, 0, b), r = bin(pcm + 2 * HOP * i, 1, b);
            energy[0][i] += l;
            energy[1][i] += r;
            if (l + r > most) {
                most = l + r;
                pitch[i] = b;
            }
        }
        loudest = fmax(loudest, energy[0][i] + energy[1][i]);
    }
    if (sqrt(loudest) < 0.03) {
        printf(" silent none\n");
        return 0;
    }
    for (int i = 0; i < n; i++) {
        if (energy[0][i] + energy[1][i] < 0.1 * loudest) {
            rests++;
            continue;
        }
        last = atan2(sqrt(energy[1][i]), sqrt(energy[0][i])) / (3.14159265358979323846 / 2);
        if (first < 0) first = last;
        pitch[k++] = pitch[i]; // k <= i
    }
    const double start = pitch[k / 8], end = pitch[k - 1 - k / 8];
    memcpy(order, pitch, (size_t)k * sizeof *order);
    qsort(order, (size_t)k, sizeof *order, compare_int);
    const int middle = order[k / 2];
    const bool is_beep = rests > n / 5;
    printf(" %s %s %.2f %.2f\n",
           end > 1.4 * start   ? "rise"
           : start > 1.4 * end ? "fall"
           : is_beep           ? "beep"
                               : "steady",
           middle < 9    ? "low"
           : middle < 19 ? "middle"
                         : "high",
           first, last);
    return 0;
}

/* Half as wide and half as high: what the model was trained to see as a reference. */
static int halve(const char *from, const char *to)
{
    int w, h;
    unsigned char *p = read_ppm(from, &w, &h);
    FILE *f = p ? fopen(to, "wb") : NULL;

    if (!f) {
        fprintf(stderr, "%s, %s: cannot be read or written\n", from, to);
        free(p);
        return 1;
    }
    fprintf(f, "P6\n%d %d\n255\n", w / 2, h / 2);
    for (int y = 0; y + 1 < h; y += 2)
        for (int x = 0; x + 1 < w; x += 2)
            for (int c = 0; c < 3; c++) {
                const unsigned char *a = p + (y * w + x) * 3 + c, *b = a + 3 * w;
                fputc((a[0] + a[3] + b[0] + b[3] + 2) / 4, f);
            }
    free(p);
    return fclose(f) != 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "half") == 0) return halve(argv[2], argv[3]);
    if (argc != 3) {
        fprintf(stderr,
                "usage: nano_read FRAMES-DIR SOUND.wav\n       nano_read half FROM.ppm TO.ppm\n");
        return 2;
    }
    return read_picture(argv[1]) || read_sound(argv[2]);
}
