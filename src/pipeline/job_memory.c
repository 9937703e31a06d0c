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
    const size_t ring = j->fit.phase[phase].ring;

    switch (j->e->offload) {
    case H3_OFFLOAD_NONE:
        return 0;
    case H3_OFFLOAD_STREAM:
    case H3_OFFLOAD_DISK:
        return ring ? ring : 1;
    case H3_OFFLOAD_AUTO:
        break;
    }
    return h3_fit_budget(&j->fit, phase);
}

/* Phase `next` begins with what the one before it needed given back: activations, and pages that
 * the allocator keeps (a few freed gigabytes of it otherwise count against the next phase). */
void h3_job_turn(h3_job *j, h3_fit_name next)
{
    h3_dev_scratch_drop(j->e->dev);
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    j->e->dev->weight_budget = j->fit.phase[next].name ? weight_budget(j, next) : 0;
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
    H3_TRY(h3_fit_check(&j->fit));
    h3_job_tell_fit(j);
    return H3_OK;
}
