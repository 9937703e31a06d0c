/**
 * What the MP4 writer takes; see h3_mux_bytes. Nearly all of it is libx264's: pictures it looks
 * ahead at, and pictures that its threads work on, each with half-sample planes. The numbers are
 * fitted to resident sets measured from 256 x 256 to 1920 x 1088 with 1..6 threads (within 6 %).
 */
#include <string.h>

#include "encode.h"

typedef struct preset_row {
    const char *name;
    int lookahead;            ///< frames, and with them the B frames that wait
    double fixed, per_thread; ///< bytes a pixel
} preset_row;

static const preset_row presets[] = {
    {"ultrafast", 0, 2, 5},  {"superfast", 0, 10, 10}, {"veryfast", 10, 25, 13},
    {"faster", 20, 25, 13},  {"fast", 30, 25, 13},     {"medium", 40, 25, 13},
    {"slow", 50, 28, 14},    {"slower", 60, 35, 16},   {"veryslow", 60, 60, 20},
    {"placebo", 60, 60, 20},
};

static const preset_row *find_preset(const char *name)
{
    const preset_row *p = &presets[5];

    for (size_t i = 0; name && i < sizeof presets / sizeof *presets; i++)
        if (strcmp(name, presets[i].name) == 0) p = &presets[i];
    return p;
}

size_t h3_mux_bytes(const h3_mux_opt *opt)
{
    const preset_row *p = find_preset(opt->preset);
    const double pixels = (double)opt->width * (double)opt->height;
    const int64_t seen =
        opt->n_frames && opt->n_frames < p->lookahead ? opt->n_frames : p->lookahead;
    const double frames = 3.65 * (double)seen + p->fixed + p->per_thread * opt->n_threads;

    return (size_t)(12.5e6 + pixels * frames) + (size_t)opt->n_samples * 2 * sizeof(float);
}
