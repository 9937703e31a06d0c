/** Merges the per-step timesteps of layout.h into one table for the run; see schedule_rows.h. */
#include "schedule_rows.h"

#include <stdlib.h>
#include <string.h>

#include "size.h"

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int index_of(const h3_schedule_rows *r, float t)
{
    const float *hit =
        bsearch(&t, r->timesteps, (size_t)r->n_timesteps, sizeof *r->timesteps, by_value);
    return (int)(hit - r->timesteps); // every t of every step is in the table
}

static void collect(h3_schedule_rows *r, const h3_layout *l, const float *video, const float *audio)
{
    int n = 0;

    for (int i = 0; i < r->n_steps; i++) {
        const h3_step_times times = h3_layout_times(l, video[i], audio[i]);
        memcpy(r->timesteps + n, times.t, (size_t)times.n * sizeof *times.t);
        n += times.n;
    }
    qsort(r->timesteps, (size_t)n, sizeof *r->timesteps, by_value);
    for (int i = 0; i < n; i++)
        if (r->n_timesteps == 0 || r->timesteps[i] != r->timesteps[r->n_timesteps - 1])
            r->timesteps[r->n_timesteps++] = r->timesteps[i];
}

/* The step's own indices, replaced by those of the whole table. */
static h3_step_times renumber(const h3_schedule_rows *r, h3_step_times s)
{
    int *const use[] = {&s.video, &s.audio, &s.condition_video, &s.condition_audio};

    for (size_t i = 0; i < sizeof use / sizeof *use; i++)
        if (*use[i] >= 0) *use[i] = index_of(r, s.t[*use[i]]);
    return s;
}

h3_status h3_schedule_rows_init(h3_schedule_rows *r, const h3_layout *l, const h3_schedule *video,
                                const h3_schedule *audio, int first, bool has_rows)
{
    size_t bytes;

    memset(r, 0, sizeof *r);
    if (video->n_steps != audio->n_steps)
        return h3_fail(H3_E_ARG, "the video schedule has %d steps, the audio schedule %d",
                       video->n_steps, audio->n_steps);
    if (first < 0 || first >= video->n_steps)
        return h3_fail(H3_E_ARG, "first step is %d, the schedule has steps 0..%d", first,
                       video->n_steps - 1);
    r->n_steps = video->n_steps - first;
    r->timesteps = malloc((size_t)r->n_steps * 4 * sizeof *r->timesteps);
    if (!r->timesteps) return h3_fail(H3_E_NOMEM, "no memory for timesteps");
    collect(r, l, video->timesteps + first, audio->timesteps + first);
    if (!has_rows) return H3_OK;
    if (!h3_mul_size((size_t)r->n_steps * sizeof *r->mod_row, (size_t)l->n_rows, &bytes) ||
        !(r->mod_row = malloc(bytes))) {
        h3_schedule_rows_free(r);
        return h3_fail(H3_E_NOMEM, "no memory for the timesteps of %lld rows",
                       (long long)l->n_rows);
    }
    for (int i = 0; i < r->n_steps; i++) {
        const h3_step_times s = renumber(
            r, h3_layout_times(l, video->timesteps[first + i], audio->timesteps[first + i]));
        h3_layout_time_rows(l, &s, NULL, r->mod_row + i * l->n_rows);
    }
    return H3_OK;
}

void h3_schedule_rows_free(h3_schedule_rows *r)
{
    free(r->timesteps);
    free(r->mod_row);
    memset(r, 0, sizeof *r);
}
