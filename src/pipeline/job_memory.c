/** Memory between the phases of a job: what is given back, what the next phase may use; see job.h.
 */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

/* Clean latents of conditions, rows and embeddings: only sampling reads them. */
void h3_job_drop_rows(h3_job *j)
{
    for (int i = 0; i < H3_MAX_CONDITIONS; i++) {
        free(j->condition[i]);
        free(j->sound_rows[i]);
        j->condition[i] = j->sound_rows[i] = NULL;
    }
    free(j->video_rows);
    free(j->audio_rows);
    free(j->embeds.data);
    j->video_rows = j->audio_rows = NULL;
    j->embeds.data = NULL;
}

void h3_job_drop_media(h3_job *j)
{
    h3_sources_free(&j->sources);
    for (int i = 0; i < H3_MAX_CONDITIONS; i++)
        h3_prepared_free(&j->prepared[i]);
}

/* How many bytes of weights may stay where the device computes. */
static size_t weight_budget(const h3_job *j, h3_fit_name phase)
{
    return j->fit.phase[phase].name ? j->fit.phase[phase].budget : 0;
}

/* Weights of the parts that a phase uses and that are on the device already. */
static size_t held_for(const h3_job *j, h3_fit_name phase)
{
    static const h3_part_kind kinds[H3_FIT_PHASES][2] = {
        [H3_FIT_TEXT] = {H3_PART_TEXT, H3_PART_TEXT},
        [H3_FIT_ENCODE] = {H3_PART_PIXELS, H3_PART_SOUND_IN},
        [H3_FIT_SAMPLE] = {H3_PART_DIT, H3_PART_DIT_REF},
        [H3_FIT_SOUND] = {H3_PART_SOUND, H3_PART_SOUND},
        [H3_FIT_DECODE] = {H3_PART_PICTURE, H3_PART_PICTURE},
        [H3_FIT_MUX] = {H3_PART_PICTURE, H3_PART_PICTURE},
    };
    const h3_part_kind *k = kinds[phase];
    const size_t n = h3_stores_held(j->e->dev, (int)k[0]);

    return k[1] == k[0] ? n : n + h3_stores_held(j->e->dev, (int)k[1]);
}

/* Weights of kept parts stay on the device while the phase has room beside them; with a budget for
 * weights they are in the way. */
static void make_room(h3_job *j, h3_fit_name next, size_t budget)
{
    const h3_fit_phase *p = &j->fit.phase[next];
    h3_dev *d = j->e->dev;
    size_t n_free = 0, n_total = 0;
    bool has_room = !budget && !d->weight_budget;

    if (!j->e->keeps) return;
    if (has_room && d->memory && d->memory(d, &n_free, &n_total) == H3_OK)
        has_room = p->sum[H3_FIT_DEVICE] + p->sum[H3_FIT_MAPPED] <= n_free + held_for(j, next) &&
                   (!j->e->vram_limit ||
                    p->sum[H3_FIT_DEVICE] + p->sum[H3_FIT_MAPPED] + h3_stores_held(d, -1) <=
                        j->e->vram_limit + held_for(j, next));
    if (!has_room) h3_stores_drop(d);
}

/* Phase `next` begins with what the one before it needed given back: activations, and pages that
 * the allocator keeps (a few freed gigabytes of it otherwise count against the next phase). */
void h3_job_turn(h3_job *j, h3_fit_name next)
{
    const size_t budget = weight_budget(j, next);
    h3_dev *d = j->e->dev;

    h3_dev_scratch_drop(d);
    make_room(j, next, budget);
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    d->weight_budget = budget;
    d->spreads_weights = j->e->offload == H3_OFFLOAD_RANKS && next == H3_FIT_SAMPLE;
    d->pinned_budget = j->fit.phase[next].pinned;
    d->is_from_disk = j->e->offload == H3_OFFLOAD_DISK;
}

void h3_job_tell_fit(h3_job *j)
{
    char *text = h3_fit_text(&j->fit), *rest = text, *line;

    while ((line = strsep(&rest, "\n")))
        if (*line) h3_job_say(j, H3_EVENT_INFO, "%s", line);
    free(text);
    if (h3_fit_check(&j->fit) != H3_OK) h3_job_say(j, H3_EVENT_WARNING, "%s", h3_error());
}

h3_status h3_job_plan_memory(h3_job *j)
{
    H3_TRY(h3_fit_plan(&j->fit, j));
    /* Parts that are kept for later requests make way for this one. */
    if (h3_fit_check(&j->fit) != H3_OK && h3_parts_close(j->e)) H3_TRY(h3_fit_plan(&j->fit, j));
    H3_TRY(h3_fit_check(&j->fit));
    h3_job_tell_fit(j);
    return H3_OK;
}
