/**
 * What the MP4 writer takes; see h3_mux_bytes. Nearly all of it is libx264's: pictures that wait
 * while it looks ahead, and pictures that its threads work on, each with half-sample planes; both
 * have a border of 32 pixels. It starts to code when the lookahead is full, or at the end. The
 * numbers are fitted to resident sets measured from 256 x 256 to 1920 x 1088 with 1..6 threads
 * (within 5 %).
 */
#include <string.h>

#include "encode.h"

typedef struct preset_row {
    const char *name;
    int waiting;                    ///< pictures: lookahead and reordered ones
    double base, fixed, per_thread; ///< bytes, then bytes a pixel with its border
} preset_row;

static const preset_row presets[] = {
    {"ultrafast", 0, 3.5e6, 8.7, 6.5}, {"superfast", 4, 5e6, 7, 10},
    {"veryfast", 15, 6.5e6, 7, 12},    {"faster", 24, 6.5e6, 7, 12},
    {"fast", 34, 6.5e6, 7, 12},        {"medium", 44, 6.5e6, 7, 12},
    {"slow", 54, 6.5e6, 10, 13},       {"slower", 64, 6.5e6, 18, 15},
    {"veryslow", 68, 6.5e6, 40, 20},   {"placebo", 68, 6.5e6, 40, 20},
};

static const double waiting_pixel = 3.6; // bytes

/* NULL when libx264 has no such preset. */
static const preset_row *find_preset(const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(name ? name : "medium", presets[i].name) == 0) return &presets[i];
    return NULL;
}

bool h3_mux_has_preset(const char *name)
{
    return find_preset(name) != NULL;
}

size_t h3_mux_bytes(const h3_mux_opt *opt, bool is_finishing)
{
    const preset_row *known = find_preset(opt->preset), *p = known ? known : find_preset(NULL);
    const double pixels = (double)(opt->width + 64) * (double)(opt->height + 64);
    const bool is_short = opt->n_frames && opt->n_frames <= p->waiting;
    const double waiting = waiting_pixel * (double)(is_short ? opt->n_frames : p->waiting);

    if (is_short && !is_finishing) return (size_t)(2.5e6 + pixels * waiting);
    return (size_t)(p->base + pixels * (waiting + p->fixed + p->per_thread * opt->n_threads));
}
